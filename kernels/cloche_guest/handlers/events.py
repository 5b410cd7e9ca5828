"""``/v1/events``: the journal of the sandbox."""

from __future__ import annotations

from cloche.journal_feed import JournalFeed
from cloche.models.guest import Told
from cloche_guest.http import NoQuery
from cloche_guest.sandbox_events import SandboxEvents
from cloche_guest.streams import StreamHandler


class SandboxEventsHandler(StreamHandler):
    """What happened in the sandbox, as a stream."""

    def initialize(self, events: SandboxEvents) -> None:
        self.events = events

    async def open_feed(self, *_: str) -> JournalFeed:
        return self.events.feed

    async def post(self, *_: str) -> None:
        """By the server alone, which passes no client's request on to this."""
        self.read_query(NoQuery)
        told = self.read_body(Told)
        self.events.append(told.type, told.data)
        self.set_status(204)
        self.finish()
