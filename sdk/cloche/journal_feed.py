"""Journals in an event loop: `JournalFeed` wakes readers when something was appended.

One feed belongs to one event loop. Readers keep nothing but a cursor: a slow one holds no memory, it meets a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from cloche.journal import Cursor, Gap, Journal, Record, Splitter


class JournalFeed:
    """A journal and the readers that wait at its head."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def closed(self) -> bool:
        """No more records will come."""
        return self._closed

    def append(self, kind: str, data: bytes, *, keep: bool = False, split: Splitter | None = None) -> None:
        """`Journal.append`, then wake the readers. Appending to a closed feed is a defect."""
        if self._closed:
            raise RuntimeError(f"journal {self.journal.epoch} is closed; a {kind} record came too late")
        self.journal.append(kind, data, keep=keep, split=split)
        self._wake()

    def close(self) -> None:
        """Readers end once they have read everything. Closing twice does nothing."""
        self._closed = True
        self._wake()

    async def wait_beyond(self, cursor: Cursor, timeout_s: float | None = None) -> bool:
        """Wait until there is something after `cursor`, or the feed is closed: then True. False: `timeout_s` passed."""
        try:
            async with asyncio.timeout(timeout_s):
                while cursor.seq >= self.journal.head.seq and not self._closed:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def batches(self, cursor: Cursor) -> AsyncIterator[list[Record | Gap]]:
        """What comes after `cursor`, as much at a time as is there; ends when closed and drained."""
        while await self.wait_beyond(cursor):
            items = self.journal.read(cursor)
            if not items:
                return
            yield items
            cursor = items[-1].cursor

    async def follow(self, cursor: Cursor) -> AsyncIterator[Record | Gap]:
        """`batches`, one item at a time."""
        async for batch in self.batches(cursor):
            for item in batch:
                yield item

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
