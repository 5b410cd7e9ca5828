"""``/v1/events``: the journal of the sandbox."""

from __future__ import annotations

from cloche.journal_feed import JournalFeed
from cloche_guest.sandbox_events import SandboxEvents
from cloche_guest.streams import StreamHandler


class SandboxEventsHandler(StreamHandler):
    """What happened in the sandbox, as a stream."""

    def initialize(self, events: SandboxEvents) -> None:
        self.events = events

    async def open_feed(self, *_: str) -> JournalFeed:
        return self.events.feed
