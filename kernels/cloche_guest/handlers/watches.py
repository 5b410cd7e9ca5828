"""Routes of watches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from cloche.journal_feed import JournalFeed
from cloche.models import Model, Page, Watch, WatchCreate
from cloche_guest.files.watches import MAX_CHANGES, WatchService
from cloche_guest.http import Handler, NoQuery
from cloche_guest.streams import StreamHandler


class ChangesQuery(Model):
    since: str = Field(min_length=1, max_length=256)
    limit: int = Field(default=MAX_CHANGES, ge=1, le=MAX_CHANGES)


class WatchHandler(Handler):
    """Base of all of them but the stream."""

    def initialize(self, watches: WatchService) -> None:
        self.watches = watches


class WatchesHandler(WatchHandler):
    """``/v1/watches``"""

    def get(self) -> None:
        self.read_query(NoQuery)
        self.answer(Page[Watch].model_construct(items=[watch.to_model() for watch in self.watches.all()]))

    async def post(self) -> None:
        self.read_query(NoQuery)
        watch = await self.watches.create(self.read_body(WatchCreate))
        self.answer(watch.to_model(), 201)


class OneWatchHandler(WatchHandler):
    """``/v1/watches/{watch_id}``"""

    def get(self, watch_id: str) -> None:
        self.read_query(NoQuery)
        self.answer(self.watches.get(watch_id).to_model())

    def delete(self, watch_id: str) -> None:
        self.read_query(NoQuery)
        self.answer(self.watches.delete(watch_id))


class ChangesHandler(WatchHandler):
    """``.../changes``"""

    def get(self, watch_id: str) -> None:
        query = self.read_query(ChangesQuery)
        watch = self.watches.get(watch_id)
        with watch.reading():
            self.answer(watch.changes(query.since, query.limit))


class WatchEventsHandler(StreamHandler):
    """``.../events``"""

    def initialize(self, watches: WatchService) -> None:
        self.watches = watches

    async def get(self, *args: str) -> None:
        with self.watches.get(args[0]).reading():
            await super().get(*args)

    async def open_feed(self, *args: str) -> JournalFeed:
        return self.watches.get(args[0]).feed


def watch_routes(watches: WatchService) -> Sequence[tuple[Any, ...]]:
    """All of them."""
    on_watches = {"watches": watches}
    one = r"/v1/watches/([^/]+)"
    return [
        (r"/v1/watches", WatchesHandler, on_watches),
        (one, OneWatchHandler, on_watches),
        (one + "/changes", ChangesHandler, on_watches),
        (one + "/events", WatchEventsHandler, on_watches),
    ]
