"""Routes of processes, exec and services."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from cloche.errors import InvalidRequest
from cloche.journal_feed import JournalFeed
from cloche.models import (
    ExecCreate,
    Model,
    Page,
    Process,
    ProcessCreate,
    ProcessOutput,
    ProcessSignal,
    ProcessWait,
    Service,
    ServiceCreate,
    Tty,
)
from cloche.models.runs import MAX_WAIT_S
from cloche.models.terminals import TerminalSize
from cloche_guest.events import TextRecords, to_event
from cloche_guest.handlers.runs import WaitSeconds
from cloche_guest.http import Handler, NoQuery
from cloche_guest.processes import ProcessService, Services
from cloche_guest.processes._service import exec_result
from cloche_guest.processes._tree import signal_number
from cloche_guest.processes._wait import wait_for
from cloche_guest.streams import StreamHandler, shown

STREAMS = frozenset(("stdout", "stderr"))


class ExecQuery(Model):
    """How long the answer may wait for the end."""

    wait_s: WaitSeconds = 30.0


class StdinQuery(Model):
    """``offset``: where in all the input this body begins. ``close``: the end follows it. ``wait_s``: for it to be read."""

    close: bool = False
    wait_s: WaitSeconds = 10.0
    offset: int | None = Field(default=None, ge=0)


class OutputQuery(Model):
    """A page of the journal."""

    cursor: str | None = None
    stream: Literal["stdout", "stderr"] | None = None
    limit_bytes: Annotated[int, Field(ge=1, le=4 * 1024 * 1024)] = 256 * 1024
    wait_s: Annotated[float, Field(ge=0, le=MAX_WAIT_S)] = 0.0


class EventsQuery(Model):
    """Which events, and from where."""

    cursor: str | None = None
    stream: Literal["stdout", "stderr"] | None = None


def hidden_by(stream: str | None) -> frozenset[str]:
    """The other stream; what happens to the process is always shown."""
    return STREAMS - {stream} if stream is not None else frozenset()


class ProcessHandler(Handler):
    """Base of all of them."""

    def initialize(self, processes: ProcessService) -> None:
        self.processes = processes


class ProcessesHandler(ProcessHandler):
    """``/v1/processes``"""

    def get(self) -> None:
        self.read_query(NoQuery)
        self.answer(Page[Process](items=[process.to_model() for process in self.processes.all()]))

    def post(self) -> None:
        self.read_query(NoQuery)
        self.answer(self.processes.start(self.read_body(ProcessCreate)).to_model(), 201)


class OneProcessHandler(ProcessHandler):
    """``/v1/processes/{process_id}``"""

    def get(self, process_id: str) -> None:
        self.read_query(NoQuery)
        self.answer(self.processes.get(process_id).to_model())

    async def delete(self, process_id: str) -> None:
        self.read_query(NoQuery)
        self.answer(await self.processes.delete(process_id))


class SignalHandler(ProcessHandler):
    """``.../signal``"""

    def post(self, process_id: str) -> None:
        self.read_query(NoQuery)
        body = self.read_body(ProcessSignal)
        try:
            number = signal_number(body.signal)
        except ValueError as error:
            errors: list[JsonValue] = [{"field": "signal", "problem": str(error)}]
            raise InvalidRequest(f"invalid request: signal: {error}", details={"errors": errors}) from None
        process = self.processes.get(process_id)
        process.signal(number, body.kill_after_s)
        self.answer(process.to_model())


class ResizeHandler(ProcessHandler):
    """``.../resize``"""

    def post(self, process_id: str) -> None:
        self.read_query(NoQuery)
        body = self.read_body(TerminalSize)
        process = self.processes.get(process_id)
        process.resize(Tty(cols=body.cols, rows=body.rows))
        self.answer(process.to_model())


class StdinHandler(ProcessHandler):
    """``.../stdin``: the body is the input, as it is."""

    async def post(self, process_id: str) -> None:
        query = self.read_query(StdinQuery)
        data = self.read_bytes()
        process = self.processes.get(process_id)
        self.answer(await process.write(data, offset=query.offset, close=query.close, wait_s=query.wait_s))


class OutputHandler(ProcessHandler):
    """``.../output``"""

    async def get(self, process_id: str) -> None:
        query = self.read_query(OutputQuery)
        feed = self.processes.get(process_id).feed
        cursor = feed.journal.parse(query.cursor)
        if query.wait_s:
            await feed.wait_beyond(cursor, query.wait_s)
        items = feed.journal.read(cursor, max_bytes=query.limit_bytes)
        cursor = items[-1].cursor if items else cursor
        events = [to_event(item, text_records="bytes") for item in shown(items, hidden_by(query.stream))]
        at_end = feed.closed and cursor.seq == feed.journal.head.seq
        self.answer(ProcessOutput(events=events, cursor=str(cursor), at_end=at_end))


class ProcessEventsHandler(StreamHandler):
    """``.../events``"""

    text_records: TextRecords = "bytes"

    def initialize(self, processes: ProcessService) -> None:
        self.processes = processes

    async def open_feed(self, *args: str) -> JournalFeed:
        self.hidden_kinds = hidden_by(self.read_query(EventsQuery).stream)
        return self.processes.get(args[0]).feed

    def _wanted_cursor(self) -> str | None:
        return self.request.headers.get("Last-Event-ID") or self.read_query(EventsQuery).cursor


class _Cancelled(ProcessHandler):
    """Base: a client that goes away ends its waiting, and nothing else."""

    _waiting: asyncio.Task[None] | None = None

    def on_connection_close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()


class WaitHandler(_Cancelled):
    """``.../wait``: 200 when it is met, 202 when it is not yet."""

    async def post(self, process_id: str) -> None:
        self.read_query(NoQuery)
        body = self.read_body(ProcessWait)
        process = self.processes.get(process_id)
        self._waiting = asyncio.current_task()
        result = await wait_for(process, body)
        self.answer(result, 200 if result.met else 202)


class ExecHandler(_Cancelled):
    """``/v1/exec``: 200 when the program has ended, 202 when it still runs: the same body again waits on."""

    async def post(self) -> None:
        query = self.read_query(ExecQuery)
        process = self.processes.start(self.read_body(ExecCreate))
        self._waiting = asyncio.current_task()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(query.wait_s):
                await process.settled.wait()
        self.answer(exec_result(process), 200 if process.settled.is_set() else 202)


class ServiceHandler(Handler):
    """Base of the routes of services."""

    def initialize(self, services: Services) -> None:
        self.services = services


class ServicesHandler(ServiceHandler):
    """``/v1/services``"""

    def get(self) -> None:
        self.read_query(NoQuery)
        self.answer(Page[Service](items=self.services.all()))

    def post(self) -> None:
        self.read_query(NoQuery)
        self.answer(self.services.declare(self.read_body(ServiceCreate)), 201)


class OneServiceHandler(ServiceHandler):
    """``/v1/services/{name}``"""

    def get(self, name: str) -> None:
        self.read_query(NoQuery)
        self.answer(self.services.get(name))

    async def delete(self, name: str) -> None:
        self.read_query(NoQuery)
        self.answer(await self.services.delete(name))


class ServiceRestartHandler(ServiceHandler):
    """``.../restart``"""

    async def post(self, name: str) -> None:
        self.read_query(NoQuery)
        self.read_body(NoQuery)
        self.answer(await self.services.restart(name))
