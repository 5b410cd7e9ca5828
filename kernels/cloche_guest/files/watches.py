"""Watches: each is an operation of a worker that goes on, and a journal of what it tells."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import string
from collections import OrderedDict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, Literal

from cloche.errors import ClocheError, CursorBeyondHead, ForeignCursor, Gone, LimitReached, NotFound
from cloche.journal import Cursor, Gap, Journal, Record
from cloche.journal_feed import JournalFeed
from cloche.models import Changes, Watch, WatchCreate
from cloche_guest.clock import Clock
from cloche_guest.events import to_event
from cloche_guest.files.service import FileService, completed
from cloche_guest.files.workers import MAX_WATCHES, Json, Operation
from cloche_guest.identity import new_epoch
from cloche_guest.latest_ids import LatestIds

MAX_BYTES: Final = 8 * 1024 * 1024
MAX_RECORDS: Final = 65_536
"""About 20 MiB with what a record costs; an npm install of 20,000 files is below it."""

START_S: Final = 120.0
"""For the first walk through the tree: a million files take about a minute."""

MAX_CHANGES: Final = 1000
_KEPT_IDS: Final = 1000
_KINDS: Final = frozenset(
    ("create", "modify", "attrib", "delete", "move", "overflow", "rescanned", "unwatched", "stopped")
)


class LiveWatch:
    """One watch. ``expired`` is called when nobody has read it for too long; time in which the sandbox stood still does not
    count."""

    def __init__(
        self,
        body: WatchCreate,
        operation: Operation,
        directories: int,
        expired: Callable[[LiveWatch], None],
        clock: Clock,
    ) -> None:
        self.id = "watch-" + "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(12))
        self.body = body
        self.feed = JournalFeed(Journal(new_epoch(), max_bytes=MAX_BYTES, max_records=MAX_RECORDS))
        self._operation = operation
        self._directories = directories
        self._expired = expired
        self._clock = clock
        self._read_at = clock()
        self._created_at = datetime.now(UTC)
        self._readers = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._pump = asyncio.create_task(self._follow(), name=f"watch {self.id}")
        self._rest()

    def to_model(self) -> Watch:
        body = self.body
        return Watch.model_construct(
            id=self.id,
            path=body.path,
            user=body.user,
            recursive=body.recursive,
            include=body.include,
            exclude=body.exclude,
            coalesce_ms=body.coalesce_ms,
            idle_timeout_s=body.idle_timeout_s,
            state="stopped" if self.feed.closed else "watching",
            directories=self._directories,
            created_at=self._created_at,
            cursor=str(self.feed.journal.head),
        )

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """While somebody reads, it does not expire."""
        self._readers += 1
        if self._expiry is not None:
            self._expiry.cancel()
        try:
            yield
        finally:
            self._readers -= 1
            self._rest()

    def changes(self, since: str, limit: int) -> Changes:
        """What happened behind `since`."""
        journal = self.feed.journal
        try:
            cursor = journal.parse(since)
        except (ForeignCursor, CursorBeyondHead):
            return self._resync("foreign_cursor")
        records = _no_gaps(journal.read(cursor, max_records=limit, max_bytes=MAX_BYTES))
        if records is None:
            return self._resync("gap")
        if not records and self.feed.closed:
            return self._resync("stopped")
        behind: Cursor = records[-1].cursor if records else cursor
        status: Literal["changed", "unchanged"] = "changed" if records else "unchanged"
        events = [to_event(record, text_records="json") for record in records]
        return Changes(status=status, events=events, more=behind.seq < journal.head.seq, cursor=str(behind))

    def stop(self, reason: str) -> None:
        """End it; readers get `stopped` as the last event. Idempotent."""
        self._pump.cancel()
        self._finish(reason)

    async def wait_stopped(self) -> None:
        await asyncio.gather(self._pump, return_exceptions=True)

    def _resync(self, reason: str) -> Changes:
        return Changes(status="resync", reason=reason, events=[], more=False, cursor=str(self.feed.journal.head))

    def _rest(self) -> None:
        self._read_at = self._clock()
        if not self._readers and not self.feed.closed:
            self._look_again_in(self.body.idle_timeout_s)

    def _look_again_in(self, seconds: float) -> None:
        self._expiry = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        left_s = self._read_at + self.body.idle_timeout_s - self._clock()
        if left_s > 0:
            self._look_again_in(left_s)
            return
        self.stop("idle")
        self._expired(self)

    async def _follow(self) -> None:
        try:
            async for data in self._operation.data():
                batch = json.loads(data)
                self._directories = int(batch["directories"])
                for event in batch["events"]:
                    self._append(event)
        except (ClocheError, ValueError, KeyError, TypeError):
            pass
        self._finish("lost")  # unless it has said `stopped`: the worker was killed, and nobody has looked since

    def _append(self, event: Json) -> None:
        if event["type"] in _KINDS and not self.feed.closed:
            self.feed.append(event["type"], json.dumps(event["data"]).encode())
            if event["type"] == "stopped":
                self.feed.close()

    def _finish(self, reason: str) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._append({"type": "stopped", "data": {"reason": reason}})
        self._operation.close()


def _no_gaps(items: list[Record | Gap]) -> list[Record] | None:
    records = [item for item in items if isinstance(item, Record)]
    return records if len(records) == len(items) else None


class WatchService:
    """All watches. Those that ended by themselves stay readable until there are `MAX_WATCHES`."""

    def __init__(self, files: FileService, clock: Clock) -> None:
        self._files = files
        self._clock = clock
        self._watches: OrderedDict[str, LiveWatch] = OrderedDict()
        self._gone = LatestIds(_KEPT_IDS)
        self._starting = 0

    async def create(self, body: WatchCreate) -> LiveWatch:
        """Returns when everything is watched: what happens from then on is told."""
        self._make_room()
        self._starting += 1
        try:
            with completed(body.path, body.user):
                operation = await self._files.start(
                    "watch", body.user, counted=False, **body.model_dump(exclude={"user", "idle_timeout_s"})
                )
                try:
                    ready = await operation.answer(START_S)
                except BaseException:
                    operation.close()
                    raise
        finally:
            self._starting -= 1
        watch = LiveWatch(body, operation, int(ready.get("directories", 0)), self._forget, self._clock)
        self._watches[watch.id] = watch
        return watch

    def get(self, watch_id: str) -> LiveWatch:
        """
        Raises:
            NotFound, Gone
        """
        watch = self._watches.get(watch_id)
        if watch is not None:
            return watch
        details = {"kind": "watch", "id": watch_id[:64]}
        if watch_id in self._gone:
            raise Gone(f"watch {watch_id} was deleted, or nobody read it", hint="make a new one", details={**details})
        raise NotFound(f"there is no watch {watch_id[:64]}", details={**details})

    def all(self) -> list[LiveWatch]:
        """Newest first."""
        return list(reversed(self._watches.values()))

    def delete(self, watch_id: str) -> Watch:
        watch = self.get(watch_id)
        watch.stop("removed")
        self._forget(watch)
        return watch.to_model()

    def renew_journals(self) -> None:
        """See `Journal.renew`; who asks for changes with an older cursor is told to look anew."""
        for watch in self._watches.values():
            watch.feed.journal.renew(new_epoch())

    async def stop(self) -> None:
        """End all."""
        for watch in self._watches.values():
            watch.stop("removed")
        for watch in self._watches.values():
            await watch.wait_stopped()

    def _make_room(self) -> None:
        if len(self._watches) + self._starting < MAX_WATCHES:
            return
        ended = next((watch for watch in self._watches.values() if watch.feed.closed), None)
        if ended is None:
            raise LimitReached(f"{MAX_WATCHES} watches are going on", details={"limit": MAX_WATCHES, "kind": "watches"})
        self._forget(ended)

    def _forget(self, watch: LiveWatch) -> None:
        self._watches.pop(watch.id, None)
        self._gone.add(watch.id)
