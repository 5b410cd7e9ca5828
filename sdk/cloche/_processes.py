"""The processes of one sandbox: start, find and list them; exec; services."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Unpack

from cloche import _process_calls as _calls
from cloche import models
from cloche._answers import built
from cloche._exec import Command, ExecResult, SpecOptions, command_fields, input_of
from cloche._flow import Flow, Follow, Tell, awaiting, blocking, send, send_patiently
from cloche._ids import new_process_id
from cloche._link import AsyncLink, Link
from cloche._patience import Patience
from cloche._process import AsyncProcess, Process, ProcessFlows, output_bytes
from cloche._run_handle import WAIT_S
from cloche._watchers import OnText
from cloche.models import (
    Event,
    ExecCreate,
    LogCondition,
    PortCondition,
    ProcessCreate,
    ProcessState,
    RestartPolicy,
    Service,
    ServiceCreate,
)


class StartOptions(SpecOptions, total=False):
    """How a process is to run; None: the server's default. ``stdin="open"`` makes `Process.write` possible."""

    name: str | None
    stdin: str | None
    timeout_s: float | None


class ServiceOptions(SpecOptions, total=False):
    """What a service is; see `cloche.models.ServiceCreate`."""

    restart: RestartPolicy | Mapping[str, object] | None
    ready: PortCondition | LogCondition | None
    depends_on: list[str] | None


class ExecFlows:
    """``exec`` as a flow, for a sandbox."""

    def __init__(self, sandbox_id: str, patience: Patience) -> None:
        self.id = sandbox_id
        self._patience = patience

    def _exec(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        input: str | bytes | None = None,
        timeout_s: float | None = None,
        grace_s: float | None = None,
        tty: models.Tty | Mapping[str, int] | None = None,
        max_output_bytes: int | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
    ) -> Flow[ExecResult]:
        """Run a program to its end. A lost connection never runs it twice. What it does not do is raise for an exit code.

        A child that it leaves in the background goes on and does not hold this call.

        :param command: a line for the shell (str), or a program and its arguments (list).
        :param user: ``root`` where the sandbox has sudo.
        :param input: what it reads from stdin, 4 MiB at most; then, and without it, the end.
        :param timeout_s: seconds it may run; then TERM, after ``grace_s`` KILL, and ``result.timed_out``. Default: 600.
        :param tty: a `cloche.models.Tty`: a terminal for its output.
        :param max_output_bytes: of each stream in the result; beyond it head and tail are kept. Default: 1 MiB.
        :param on_stdout: called with each piece of text while it runs; ``on_stderr`` likewise.
        :raises ProcessStartFailed: the program or ``cwd`` cannot be used.
        """
        body = built(
            ExecCreate,
            **command_fields(command),
            id=new_process_id(),
            cwd=cwd,
            env=env,
            user=user,
            input=input_of(input),
            timeout_s=timeout_s,
            grace_s=grace_s,
            tty=tty,
            max_output_bytes=max_output_bytes,
        )
        watched = on_stdout is not None or on_stderr is not None
        result = yield from self._post_exec(body, 0 if watched else WAIT_S)
        if watched:
            yield from self._watch_exec(result.process, on_stdout, on_stderr)
        while result.process.state is ProcessState.RUNNING or watched:
            watched = False
            result = yield from self._post_exec(body, WAIT_S)
        return ExecResult(result)

    def _post_exec(self, body: ExecCreate, wait_s: float) -> Flow[models.ExecResult]:
        return (yield from send_patiently(_calls.run_exec(self.id, body, wait_s), self._patience))

    def _watch_exec(self, info: models.Process, on_stdout: OnText | None, on_stderr: OnText | None) -> Flow[None]:
        """Tell of the output until the process has finished, or lingers."""
        tail = ProcessFlows(self.id, info, self._patience)._tail(None, None)
        callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        decoder = codecs.getincrementaldecoder("utf-8")
        decoders = {stream: decoder(errors="replace") for stream in callbacks}

        def take(event: Event) -> Flow[None]:
            if event.type == "lingering":
                tail.done = True
            callback = callbacks.get(event.type)
            if callback is not None:
                yield Tell(callback, decoders[event.type].decode(output_bytes(event)))

        yield Follow(tail, take)


class _Making:
    """What both kinds of `Processes` share."""

    def __init__(self, sandbox_id: str, patience: Patience) -> None:
        self._sandbox_id = sandbox_id
        self._patience = patience

    def _start_flow(self, command: Command, options: StartOptions) -> Flow[models.Process]:
        body = built(ProcessCreate, **command_fields(command), id=new_process_id(), **options)
        return (yield from send_patiently(_calls.start_process(self._sandbox_id, body), self._patience))

    def _get_flow(self, process_id: str) -> Flow[models.Process]:
        path = _calls.process_path(self._sandbox_id, process_id)
        return (yield from send_patiently(_calls.process(path), self._patience))

    def _list_flow(self) -> Flow[list[models.Process]]:
        return (yield from send_patiently(_calls.processes(self._sandbox_id), self._patience)).items


class Processes(_Making):
    """The processes of one sandbox."""

    def __init__(self, link: Link, sandbox_id: str) -> None:
        super().__init__(sandbox_id, link.patience)
        self._link = link

    def start(self, command: Command, **options: Unpack[StartOptions]) -> Process:
        """Start a program and return when it runs: a line for the shell (str), or program and arguments (list).

        :raises ProcessStartFailed: the program or ``cwd`` cannot be used.
        """
        return self._handle(self._link.drive(self._start_flow(command, options)))

    def get(self, process_id: str) -> Process:
        """A handle for a process that was started earlier, also by another client.

        :raises NotFound: there is none.
        :raises Gone: it is no longer kept.
        """
        return self._handle(self._link.drive(self._get_flow(process_id)))

    def list(self) -> list[Process]:
        """Those that run, and the newest that have finished; newest first."""
        return [self._handle(info) for info in self._link.drive(self._list_flow())]

    def _handle(self, info: models.Process) -> Process:
        return Process(self._link, self._sandbox_id, info)


class AsyncProcesses(_Making):
    """The processes of one sandbox."""

    def __init__(self, link: AsyncLink, sandbox_id: str) -> None:
        super().__init__(sandbox_id, link.patience)
        self._link = link

    async def start(self, command: Command, **options: Unpack[StartOptions]) -> AsyncProcess:
        """Start a program and return when it runs; see `Processes.start`."""
        return self._handle(await self._link.drive(self._start_flow(command, options)))

    async def get(self, process_id: str) -> AsyncProcess:
        """A handle for a process that was started earlier; see `Processes.get`."""
        return self._handle(await self._link.drive(self._get_flow(process_id)))

    async def list(self) -> list[AsyncProcess]:
        """Those that run, and the newest that have finished; newest first."""
        return [self._handle(info) for info in await self._link.drive(self._list_flow())]

    def _handle(self, info: models.Process) -> AsyncProcess:
        return AsyncProcess(self._link, self._sandbox_id, info)


class ServiceFlows:
    """What can be done with services, as flows."""

    def __init__(self, sandbox_id: str, patience: Patience) -> None:
        self._sandbox_id = sandbox_id
        self._patience = patience

    def _declare(self, name: str, command: Command, **options: Unpack[ServiceOptions]) -> Flow[Service]:
        """Declare a process that is kept running, also when the guest starts again. Declaring the same again is fine.

        :param options: `SpecOptions`, and ``restart``, ``ready``, ``depends_on`` as in `cloche.models.ServiceCreate`.
        """
        body = built(ServiceCreate, name=name, **command_fields(command), **options)
        return (yield from send_patiently(_calls.declare_service(self._sandbox_id, body), self._patience))

    def _get(self, name: str) -> Flow[Service]:
        """One service."""
        return (yield from send_patiently(_calls.service(self._path(name)), self._patience))

    def _list(self) -> Flow[list[Service]]:
        """All services, oldest first."""
        return (yield from send_patiently(_calls.services(self._sandbox_id), self._patience)).items

    def _restart(self, name: str) -> Flow[Service]:
        """Stop it, and start it anew."""
        return (yield from send(_calls.restart_service(self._path(name))))

    def _delete(self, name: str) -> Flow[Service]:
        """Stop it, and forget it."""
        return (yield from send(_calls.delete_service(self._path(name))))

    def _path(self, name: str) -> str:
        return _calls.service_path(self._sandbox_id, name)


class Services(ServiceFlows):
    """The services of one sandbox."""

    def __init__(self, link: Link, sandbox_id: str) -> None:
        super().__init__(sandbox_id, link.patience)
        self._link = link

    declare = blocking(ServiceFlows._declare)
    get = blocking(ServiceFlows._get)
    list = blocking(ServiceFlows._list)
    restart = blocking(ServiceFlows._restart)
    delete = blocking(ServiceFlows._delete)


class AsyncServices(ServiceFlows):
    """The services of one sandbox."""

    def __init__(self, link: AsyncLink, sandbox_id: str) -> None:
        super().__init__(sandbox_id, link.patience)
        self._link = link

    declare = awaiting(ServiceFlows._declare)
    get = awaiting(ServiceFlows._get)
    list = awaiting(ServiceFlows._list)
    restart = awaiting(ServiceFlows._restart)
    delete = awaiting(ServiceFlows._delete)
