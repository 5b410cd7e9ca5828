"""Routes of contexts."""

from __future__ import annotations

import asyncio
from typing import Final

from pydantic import Field

from cloche.errors import ContextStartFailed
from cloche.journal_feed import JournalFeed
from cloche.models import CompleteRequest, Context, ContextCreate, History, InspectRequest, Model, Page
from cloche_guest.contexts import ContextService
from cloche_guest.contexts._context import LiveContext
from cloche_guest.http import Handler, NoQuery
from cloche_guest.streams import StreamHandler

CREATE_TIMEOUT_S: Final = 60.0
"""A kernel has 30 s to start; the rest is for waiting behind others that start."""


class HistoryQuery(Model):
    """How much of the history."""

    limit: int = Field(default=100, ge=1, le=1000)


class ContextsHandler(Handler):
    """``/v1/contexts``"""

    def initialize(self, contexts: ContextService) -> None:
        self.contexts = contexts

    async def get(self) -> None:
        self.read_query(NoQuery)
        self.answer(Page[Context](items=[context.to_model() for context in self.contexts.all()]))

    async def post(self) -> None:
        self.read_query(NoQuery)
        body = self.read_body(ContextCreate)
        try:
            async with asyncio.timeout(CREATE_TIMEOUT_S):
                context = await self.contexts.create(body)
        except TimeoutError:
            raise ContextStartFailed(f"no kernel answered within {CREATE_TIMEOUT_S:g} s") from None
        self.answer(context.to_model(), 201)


class ContextHandler(Handler):
    """Base of everything below ``/v1/contexts/{context_id}``."""

    def initialize(self, contexts: ContextService) -> None:
        self.contexts = contexts

    async def use(self, context_id: str) -> LiveContext:
        """The context, with its first kernel running."""
        return await self.contexts.use(context_id)


class OneContextHandler(ContextHandler):
    """``/v1/contexts/{context_id}``"""

    async def get(self, context_id: str) -> None:
        self.read_query(NoQuery)
        self.answer(self.contexts.get(context_id).to_model())

    async def delete(self, context_id: str) -> None:
        self.read_query(NoQuery)
        self.answer(await self.contexts.delete(context_id))


class InterruptHandler(ContextHandler):
    """``.../interrupt``"""

    async def post(self, context_id: str) -> None:
        self.read_query(NoQuery)
        self.read_body(NoQuery)
        context = await self.use(context_id)
        context.interrupt()
        self.answer(context.to_model())


class RestartHandler(ContextHandler):
    """``.../restart``"""

    async def post(self, context_id: str) -> None:
        self.read_query(NoQuery)
        self.read_body(NoQuery)
        context = await self.use(context_id)
        await self.contexts.restart(context)
        self.answer(context.to_model())


class CompleteHandler(ContextHandler):
    """``.../complete``"""

    async def post(self, context_id: str) -> None:
        self.read_query(NoQuery)
        body = self.read_body(CompleteRequest)
        self.answer(await self.contexts.complete(await self.use(context_id), body))


class InspectHandler(ContextHandler):
    """``.../inspect``"""

    async def post(self, context_id: str) -> None:
        self.read_query(NoQuery)
        body = self.read_body(InspectRequest)
        self.answer(await self.contexts.inspect(await self.use(context_id), body))


class HistoryHandler(ContextHandler):
    """``.../history``"""

    async def get(self, context_id: str) -> None:
        query = self.read_query(HistoryQuery)
        context = await self.use(context_id)
        self.answer(History(entries=context.history.newest(query.limit)))


class VariablesHandler(ContextHandler):
    """``.../variables``"""

    async def get(self, context_id: str) -> None:
        self.read_query(NoQuery)
        self.answer(await self.contexts.variables(await self.use(context_id)))


class ContextEventsHandler(StreamHandler):
    """``.../events``"""

    def initialize(self, contexts: ContextService) -> None:
        self.contexts = contexts

    async def open_feed(self, *args: str) -> JournalFeed:
        return (await self.contexts.use(args[0])).journal.feed
