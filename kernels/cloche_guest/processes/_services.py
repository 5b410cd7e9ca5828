"""Services: processes that are kept running. One task a service walks through its states.

A service starts when everything it depends on is ready, is ready when its condition is met, and is started again by its
policy. Dependencies must exist when a service is declared, so they cannot form a circle. When a dependency ends later,
what depends on it goes on; it reconnects or ends by itself, and its own policy counts then.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Final

from pydantic import JsonValue

from cloche.errors import ClocheError, Conflict, InvalidRequest, LimitReached, NotFound, ProcessEnded
from cloche.models import (
    LogCondition,
    ProcessCreate,
    ProcessExit,
    ProcessSpec,
    ProcessWait,
    Service,
    ServiceCreate,
    ServiceState,
)
from cloche_guest.processes._declarations import Declarations
from cloche_guest.processes._process import LiveProcess, Told
from cloche_guest.processes._restarting import in_row, is_success, restart_delay_s
from cloche_guest.processes._service import ProcessService
from cloche_guest.processes._wait import wait_for
from cloche_guest.programs import argv_of

MAX_SERVICES: Final = 64
STOP_GRACE_S: Final = 5.0
READY_WAIT_S: Final = 60.0


class _LiveService:
    """One service and its task."""

    def __init__(self, body: ServiceCreate, services: Services) -> None:
        self.body = body
        self.state = ServiceState.WAITING
        self.ready = asyncio.Event()
        self.process: LiveProcess | None = None
        self.restarts = 0
        self.last_exit: ProcessExit | None = None
        self.problem: str | None = None
        self._services = services
        self._created_at = datetime.now(UTC)
        self._ending = asyncio.Lock()
        self._is_over = False
        self._task = asyncio.create_task(self._run(), name=f"service {body.name}")

    def to_model(self) -> Service:
        return Service(
            name=self.body.name,
            state=self.state,
            argv=argv_of(self.body),
            restart=self.body.restart,
            depends_on=self.body.depends_on,
            process_id=self.process.id if self.process is not None else None,
            restarts=self.restarts,
            last_exit=self.last_exit,
            problem=self.problem,
            created_at=self._created_at,
        )

    async def begin_anew(self) -> None:
        """End what runs, and start from the beginning, unless `end` is called meanwhile. One after the other: two would start
        two programs."""
        async with self._ending:
            await self._end_program()
            if self._is_over:
                return
            self.restarts, self.last_exit, self.problem = 0, None, None
            self.state = ServiceState.WAITING  # whoever asked is answered before the task has begun
            self._task = asyncio.create_task(self._run(), name=f"service {self.body.name}")

    async def end(self) -> None:
        """Stop the program, and stay so."""
        self._is_over = True
        async with self._ending:
            await self._end_program()

    async def _end_program(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self.process is not None:
            await self.process.stop(STOP_GRACE_S)

    async def _run(self) -> None:
        self._enter(ServiceState.WAITING)
        for name in self.body.depends_on:
            await self._services.find(name).ready.wait()
        count = 0
        while True:
            began = time.monotonic()
            self.last_exit = await self._live_once()
            count = in_row(count, time.monotonic() - began)
            delay_s = restart_delay_s(self.body.restart, self.last_exit, count)
            if delay_s is None:
                self._enter(ServiceState.ENDED if is_success(self.last_exit) else ServiceState.FAILED)
                return
            self._enter(ServiceState.BACKING_OFF)
            await asyncio.sleep(delay_s)
            count += 1
            self.restarts += 1

    async def _live_once(self) -> ProcessExit | None:
        """From a start to its end; None: there is no exit to speak of."""
        self._enter(ServiceState.STARTING)
        try:
            self.process = process = self._services.start(self.body)
        except ClocheError as error:
            self.problem = error.message
            return None
        self.problem = None
        try:
            await self._await_ready(process)
        except ProcessEnded as error:
            self.problem = error.message
        except ClocheError as error:  # the condition cannot be checked: it runs, but is never ready
            self.problem = error.message
        else:
            self._enter(ServiceState.READY)
        await process.ended.wait()
        return process.exit

    async def _await_ready(self, process: LiveProcess) -> None:
        condition = self.body.ready
        if condition is None:
            return
        wait = ProcessWait(conditions=[condition], timeout_s=READY_WAIT_S)
        while not (await wait_for(process, wait)).met:
            continue

    def _enter(self, state: ServiceState) -> None:
        self.state = state
        if state is ServiceState.READY:
            self.ready.set()
        else:
            self.ready.clear()
        process_id = self.process.id if self.process is not None else None
        self._services.tell(
            "service_state", {"service": self.body.name, "state": state.value, "process_id": process_id}
        )


class Services:
    """All services of the sandbox. `open` starts those that were declared in an earlier life of the guest."""

    def __init__(self, processes: ProcessService, declarations: Declarations, tell: Told) -> None:
        self.tell = tell
        self._processes = processes
        self._declarations = declarations
        self._services: dict[str, _LiveService] = {}

    def open(self) -> None:
        """Start what was declared before."""
        for body in self._declarations.read():
            if body.name not in self._services and all(name in self._services for name in body.depends_on):
                self._services[body.name] = _LiveService(body, self)

    def all(self) -> list[Service]:
        """In the order they were declared."""
        return [service.to_model() for service in self._services.values()]

    def get(self, name: str) -> Service:
        """
        Raises:
            NotFound
        """
        return self.find(name).to_model()

    def declare(self, body: ServiceCreate) -> Service:
        """A new service; it starts now, or when what it depends on is ready. The same body again changes nothing.

        Raises:
            Conflict: there is another one of this name.
            InvalidRequest: a dependency that is not there, or a ready condition with a cursor.
            LimitReached
        """
        known = self._services.get(body.name)
        if known is not None:
            if known.body == body:
                return known.to_model()
            raise Conflict(
                f"there is a service {body.name} already", hint="delete it first", details={"name": body.name}
            )
        self._check(body)
        self._services[body.name] = _LiveService(body, self)
        self._write()
        return self.get(body.name)

    async def restart(self, name: str) -> Service:
        """Stop it, and start it anew."""
        service = self.find(name)
        await service.begin_anew()
        return service.to_model()

    async def delete(self, name: str) -> Service:
        """Stop it, and forget it; returns what it was at the end.

        Raises:
            NotFound
            Conflict: another service depends on it.
        """
        service = self.find(name)
        users = [other.body.name for other in self._services.values() if name in other.body.depends_on]
        if users:
            raise Conflict(f"{', '.join(users)} depend on {name}", details={"name": name, "used_by": list(users)})
        del self._services[name]
        self._write()
        await service.end()
        return service.to_model()

    async def stop(self) -> None:
        """End all; they stay declared."""
        await asyncio.gather(*(service.end() for service in self._services.values()))
        self._services.clear()

    def find(self, name: str) -> _LiveService:
        """
        Raises:
            NotFound
        """
        service = self._services.get(name)
        if service is None:
            raise NotFound(f"there is no service {name}", details={"kind": "service", "id": name})
        return service

    def start(self, body: ServiceCreate) -> LiveProcess:
        """The program of a service, once."""
        fields = {name: getattr(body, name) for name in ProcessSpec.model_fields}
        return self._processes.start(ProcessCreate(**fields, name=body.name), service=body.name)

    def _check(self, body: ServiceCreate) -> None:
        if len(self._services) >= MAX_SERVICES:
            raise LimitReached(f"this sandbox has {MAX_SERVICES} services already", details={"limit": MAX_SERVICES})
        problems = [
            ("depends_on", f"there is no service {name}") for name in body.depends_on if name not in self._services
        ]
        if isinstance(body.ready, LogCondition) and body.ready.cursor is not None:
            problems.append(("ready.cursor", "a service has a new journal for each start"))
        if problems:
            errors: list[JsonValue] = [{"field": field, "problem": problem} for field, problem in problems]
            raise InvalidRequest(f"invalid request: {problems[0][0]}: {problems[0][1]}", details={"errors": errors})

    def _write(self) -> None:
        self._declarations.write([service.body for service in self._services.values()])
