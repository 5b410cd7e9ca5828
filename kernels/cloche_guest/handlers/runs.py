"""Routes of runs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from cloche.journal_feed import JournalFeed
from cloche.models import InputReply, Model, RunCreate, RunList, RunState
from cloche.models.runs import MAX_WAIT_S
from cloche_guest.contexts import ContextService
from cloche_guest.contexts._context import LiveContext
from cloche_guest.contexts._run import RunRecord
from cloche_guest.events import TextRecords
from cloche_guest.handlers.contexts import ContextHandler
from cloche_guest.http import NoQuery, invalid, wants
from cloche_guest.streams import StreamHandler, send_sse

WaitSeconds = Annotated[float, Field(ge=0, le=MAX_WAIT_S)]


class SubmitQuery(Model):
    """How long the answer may wait for the run to finish."""

    wait_s: WaitSeconds = 30.0


class GetQuery(Model):
    """As for a new run, but not waiting is the default."""

    wait_s: WaitSeconds = 0.0


class InputMessage(InputReply):
    """A line for input(), over WebSocket."""

    type: Literal["input"]


class InterruptMessage(Model):
    """Stop the run, over WebSocket."""

    type: Literal["interrupt"]


_MESSAGE: TypeAdapter[InputMessage | InterruptMessage] = TypeAdapter(
    Annotated[InputMessage | InterruptMessage, Field(discriminator="type")], config=ConfigDict(defer_build=True)
)


class RunHandler(ContextHandler):
    """Base: answers with a run, finished or not."""

    async def answer_run(self, run: RunRecord, wait_s: float) -> None:
        """200 when it has finished within `wait_s`, else 202."""
        if wait_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await run.finished.wait()
        self.answer(run.to_model(), 200 if run.state is RunState.FINISHED else 202)


class RunsHandler(RunHandler):
    """``.../runs``"""

    async def get(self, context_id: str) -> None:
        self.read_query(NoQuery)
        context = await self.use(context_id)
        self.answer(RunList(runs=[run.to_summary() for run in context.runs.all()]))

    async def post(self, context_id: str) -> None:
        query = self.read_query(SubmitQuery)
        body = self.read_body(RunCreate)
        context = await self.use(context_id)
        run = context.submit(body)
        self.set_header("Cloche-Run-Id", run.id)
        if wants(self.request.headers, "text/event-stream"):
            await send_sse(self, run.feed, run.feed.journal.start, text_records="utf8")
        else:
            await self.answer_run(run, query.wait_s)


class WarmUpHandler(RunHandler):
    """``/v1/warm-up``: answers as a run does that nobody can find again; the next one in every context costs what those after
    it cost. 204: nothing could run."""

    async def post(self) -> None:
        query = self.read_query(SubmitQuery)
        runs = await self.contexts.rehearse(self.read_body(RunCreate))
        if runs:
            await self.answer_run(runs[0], query.wait_s)
        else:
            self.set_status(204)
            self.finish()


class OneRunHandler(RunHandler):
    """``.../runs/{run_id}``"""

    async def get(self, context_id: str, run_id: str) -> None:
        query = self.read_query(GetQuery)
        context = await self.use(context_id)
        await self.answer_run(context.runs.get(run_id), query.wait_s)


class RunInterruptHandler(RunHandler):
    """``.../runs/{run_id}/interrupt``"""

    async def post(self, context_id: str, run_id: str) -> None:
        self.read_query(NoQuery)
        self.read_body(NoQuery)
        context = await self.use(context_id)
        run = context.runs.get(run_id)
        context.interrupt_run(run)
        self.answer(run.to_model())


class RunInputHandler(RunHandler):
    """``.../runs/{run_id}/input``"""

    async def post(self, context_id: str, run_id: str) -> None:
        self.read_query(NoQuery)
        body = self.read_body(InputReply)
        context = await self.use(context_id)
        run = context.runs.get(run_id)
        context.answer(run, body.text)
        self.answer(run.to_model())


class RunEventsHandler(StreamHandler):
    """``.../runs/{run_id}/events``"""

    text_records: TextRecords = "utf8"
    _context: LiveContext
    _run: RunRecord

    def initialize(self, contexts: ContextService) -> None:
        self.contexts = contexts

    async def open_feed(self, *args: str) -> JournalFeed:
        self._context = await self.contexts.use(args[0])
        self._run = self._context.runs.get(args[1])
        return self._run.feed

    async def on_client_message(self, message: dict[str, Any]) -> None:
        try:
            parsed = _MESSAGE.validate_python(message)
        except ValidationError as error:
            raise invalid(error) from None
        if isinstance(parsed, InputMessage):
            self._context.answer(self._run, parsed.text)
        else:
            self._context.interrupt_run(self._run)
