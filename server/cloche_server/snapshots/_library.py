"""Which snapshots there are: finding, listing, using, deleting and forgetting them. Knows nothing of sandboxes that run.

Two witnesses for each: a row, which says what it is, and a directory, which is what it is. A row is ``ready`` after its
directory has its name, and is ``deleted`` before the directory goes; so a server that dies in between leaves something
that `recover` can tell, and nothing that looks good and is not.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from cloche.errors import Conflict, Gone, InvalidRequest, LimitReached, NotFound, SnapshotBroken
from cloche.models import Retention, SnapshotTree
from cloche_server.auth import Principal
from cloche_server.clock import Clock, now_us
from cloche_server.snapshots._files import UNFINISHED, SnapshotFiles, check_content
from cloche_server.snapshots._manifest import Manifest, content_digest, manifest_of
from cloche_server.snapshots._retention import replaced
from cloche_server.snapshots._tree import tree_of
from cloche_server.state import PageToken, SavedFile, SnapshotFilter, SnapshotRow, SnapshotStore

_LOG: Final = logging.getLogger("cloche.snapshots")

IN_USE_BOUND_S: Final = 60.0
"""How long a delete waits for starts from the snapshot. The longest start has `Limits.start_timeout_s`, 60 s."""


RESERVED: Final = frozenset({"import"})


class SnapshotLibrary:
    """One for the server."""

    def __init__(self, store: SnapshotStore, files: SnapshotFiles, max_per_owner: int, clock: Clock = now_us) -> None:
        self.store = store
        self.files = files
        self._max_per_owner = max_per_owner
        self.clock = clock
        self._uses: Counter[str] = Counter()
        self._released = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    # Looking

    def get(self, principal: Principal, reference: str) -> SnapshotRow:
        """By id, or by the name of one of the caller's own. `NotFound`, also for foreign ones; `Gone` when deleted."""
        row = self.store.get(reference) if is_snapshot_id(reference) else None
        if row is not None and principal.may_see(row.owner):
            if row.state == "deleted":
                raise Gone(f"snapshot {reference} was deleted", details={"kind": "snapshot", "id": reference})
            return row
        by_name = self.store.find_by_name(principal.owner, reference)
        if by_name is None:
            raise NotFound(f"there is no snapshot {reference}", details={"kind": "snapshot", "id": reference})
        return by_name

    def some(self, wanted: SnapshotFilter, limit: int, page: str | None) -> tuple[list[SnapshotRow], str | None]:
        return self.store.list(wanted, limit, None if page is None else PageToken.decode(page))

    def tree(self, sandbox_id: str) -> SnapshotTree:
        """Of a sandbox the caller may see, also of a deleted one."""
        return tree_of(self.store.of_sandbox(sandbox_id), self.store.parents(sandbox_id))

    # Using

    @asynccontextmanager
    async def using(self, row: SnapshotRow) -> AsyncIterator[Path]:
        """Its directory, verified; it stays as long as the body runs.

        Raises:
            Conflict: it is not complete yet.
            SnapshotBroken: it is not what was saved; it is marked so.
            Gone: it was deleted meanwhile.
        """
        self._uses[row.id] += 1
        try:
            await self._check(row)
            yield self.files.directory(row.id)
        finally:
            self._uses[row.id] -= 1
            if not self._uses[row.id]:
                del self._uses[row.id]
            self._released.set()

    async def _check(self, known: SnapshotRow) -> None:
        row = self.store.get(known.id)
        if row is None or row.state == "deleted":
            raise Gone(f"snapshot {known.id} was deleted", details={"kind": "snapshot", "id": known.id})
        if row.state == "creating":
            details = {"kind": "snapshot", "id": row.id, "state": row.state}
            raise Conflict(f"snapshot {row.id} is still being made", hint="wait until it is ready", details=details)
        try:
            await asyncio.to_thread(self.files.verify, row.id, row.files)
        except SnapshotBroken as error:
            _LOG.error("a snapshot is broken", extra={"snapshot_id": row.id, "why": error.message})
            self.store.update(row, state="broken")
            raise
        if row.state == "broken":  # a disk that was away is back
            self.store.update(row, state="ready")

    # Making

    def begin(self, row: SnapshotRow) -> None:
        """Its row, ``creating``. `LimitReached`, and `Conflict` when the name is taken. `finish` or `give_up` follows."""
        count = self.store.count(row.owner)
        if row.template is None and count >= self._max_per_owner:
            raise LimitReached(
                f"{row.owner} has {count} snapshots, and the limit is {self._max_per_owner}",
                hint="delete one first, or give new ones a retention",
                details={"limit": self._max_per_owner, "count": count},
            )
        self.store.insert(row)

    async def finish(
        self,
        row: SnapshotRow,
        names: Sequence[str],
        retention: Retention | None = None,
        expected: Manifest | None = None,
    ) -> SnapshotRow:
        """The unfinished directory of ``row`` becomes the snapshot. The caller removes both when this fails.

        ``expected``: what the files have to be, or `SnapshotBroken`.
        """
        files, size = await asyncio.to_thread(self._publish, row, names, expected)
        ready = replace(row, state="ready", files=files, size_bytes=size, digest=content_digest(files))
        self.store.write(ready)
        _LOG.info("snapshot made", extra={"snapshot_id": row.id, "sandbox_id": row.sandbox_id, "size_bytes": size})
        if retention is not None and retention.keep_last is not None and row.sandbox_id is not None:
            await self._replace_older(ready, row.sandbox_id, retention.keep_last)
        return ready

    def _publish(
        self, row: SnapshotRow, names: Sequence[str], expected: Manifest | None
    ) -> tuple[list[SavedFile], int]:
        files = self.files.measure(self.files.unfinished(row.id), names)
        if expected is not None:
            check_content(row.id, files, expected)
        return files, self.files.publish(row.id, manifest_of(row, files))

    async def _replace_older(self, newest: SnapshotRow, sandbox_id: str, keep_last: int) -> None:
        for old in replaced(self.store.of_sandbox(sandbox_id), newest, keep_last):
            if not self._uses[old.id]:
                await self.remove(old)

    async def give_up(self, row: SnapshotRow) -> None:
        """One that did not become ready: nothing is left, and its name is free."""
        self.store.remove(row.id)
        await asyncio.to_thread(self.files.remove, row.id)

    # Ending

    async def delete(self, principal: Principal, reference: str) -> SnapshotRow:
        """Waits, bounded, for starts from it. `Conflict` when they last longer, or when a template needs it."""
        row = self.get(principal, reference)
        if row.state == "creating":
            raise Conflict(f"snapshot {row.id} is still being made", details={"kind": "snapshot", "id": row.id})
        if row.template is not None:
            raise Conflict(
                f"snapshot {row.id} belongs to the template {row.template}",
                hint="delete the template",
                details={"kind": "template", "id": row.template},
            )
        await self._unused(row)
        return await self.remove(row)

    async def _unused(self, row: SnapshotRow) -> None:
        try:
            async with asyncio.timeout(IN_USE_BOUND_S):
                while self._uses[row.id]:
                    self._released.clear()
                    await self._released.wait()
        except TimeoutError:
            raise Conflict(
                f"sandboxes are being started from snapshot {row.id}", details={"kind": "snapshot", "id": row.id}
            ) from None

    async def remove(self, row: SnapshotRow) -> SnapshotRow:
        """At once, whoever needs it. Its row stays, without its secrets, for its place in the tree."""
        gone = self.store.update(row, state="deleted", env=dict.fromkeys(row.env, ""), identity={}, files=[])
        await asyncio.to_thread(self.files.remove, row.id)
        return gone

    async def remove_expired(self) -> list[str]:
        """What is over and not in use; the rest has its turn the next time."""
        removed = []
        for row in self.store.expired(self.clock()):
            if row.template is None and not self._uses[row.id]:
                await self.remove(row)
                removed.append(row.id)
                _LOG.info("snapshot expired", extra={"snapshot_id": row.id})
        return removed

    def later(self, work: Callable[[], None]) -> None:
        """In a thread, soon; `close` waits for it."""
        task = asyncio.create_task(asyncio.to_thread(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def recover(self) -> None:
        """Before the first request is served."""
        await asyncio.to_thread(self.files.prepare)
        for row in self.store.with_state("creating"):
            await self.give_up(row)
        known = {row.id: row for row in self.store.with_state("ready", "broken")}
        for name in self.files.names():
            if name not in known:
                await asyncio.to_thread(self.files.remove, name.removesuffix(UNFINISHED))
        for row in known.values():
            if row.state == "ready" and not self.files.directory(row.id).is_dir():
                _LOG.error("the directory of a snapshot is gone", extra={"snapshot_id": row.id})
                self.store.update(row, state="broken")


def is_snapshot_id(text: str) -> bool:
    return len(text) == 17 and text.startswith("snap-") and text[5:].isalnum() and text == text.lower()


def check_new_name(name: str | None) -> None:
    """`InvalidRequest` for a name that would be taken for something else: an id, or a path of the API."""
    if name is not None and (is_snapshot_id(name) or name in RESERVED):
        raise InvalidRequest(
            f"a snapshot cannot be named {name}: it would be taken for an id, or a path of the API",
            hint="choose another name",
            details={"errors": [{"field": "name", "problem": "looks like an id, or a path of the API"}]},
        )
