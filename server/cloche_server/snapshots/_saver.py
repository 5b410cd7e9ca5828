"""From a sandbox to a snapshot."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from cloche.errors import UnsupportedCapability
from cloche.models import Retention, SandboxState, SnapshotCreate
from cloche_server.drivers import Checkpoint
from cloche_server.ids import new_snapshot_id
from cloche_server.sandboxes import Claim, Live, SandboxService, Saved, SavedIdentity, Steps, not_running
from cloche_server.snapshots._files import storage_errors
from cloche_server.snapshots._library import SnapshotLibrary, check_new_name
from cloche_server.state import SandboxRow, SnapshotRow

MEMORY: Final = "memory_snapshot"

_AT_REST: Final = frozenset({SandboxState.SUSPENDED, SandboxState.STOPPED})


@dataclass(frozen=True, slots=True)
class Ahead:
    """As `Steps`, and ``begins`` is told what the row of the sandbox is at that moment."""

    begins: Callable[[SandboxRow, SavedIdentity], None]
    written: Callable[[], None]


class Saver:
    """Makes snapshots. Who asked may go away: they are made all the same."""

    def __init__(self, library: SnapshotLibrary, sandboxes: SandboxService) -> None:
        self._library = library
        self._sandboxes = sandboxes
        self._finishing: set[asyncio.Task[SnapshotRow]] = set()

    async def save(
        self,
        row: SandboxRow,
        wanted: SnapshotCreate,
        template: str | None = None,
        planned: Claim | None = None,
    ) -> SnapshotRow:
        """Of a sandbox in any state in which there is something to save. ``planned`` is told the id, once it is taken.

        Raises:
            UnsupportedCapability: memory was asked for where it cannot be saved.
            Conflict: the name is taken, or another change goes on for too long.
            SnapshotFailed, StorageFull, SandboxNotRunning: nothing is left of it, and the sandbox is as it was.
        """
        memory = check_memory(row, wanted.memory)
        check_new_name(wanted.name)
        fresh = self._new_row(row, wanted, memory, template)
        self._library.begin(fresh)
        if planned is not None:
            planned(fresh.id)
        task = asyncio.create_task(self._save(fresh, row.id, wanted.retention), name=f"snapshot {fresh.id}")
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def close(self, bound_s: float) -> None:
        """Waits for what is being saved."""
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=bound_s)

    def _new_row(self, row: SandboxRow, wanted: SnapshotCreate, memory: bool, template: str | None) -> SnapshotRow:
        now, ttl_s = self._library.clock(), wanted.retention.ttl_s
        return SnapshotRow(
            id=new_snapshot_id(),
            owner=row.owner,
            name=wanted.name,
            state="creating",
            sandbox_id=row.id,
            parent=row.parent,
            memory=memory,
            driver=row.driver,
            image=row.image,
            image_digest=row.image_digest,
            resources=row.resources,
            sudo=row.sudo,
            env=row.env,
            labels=wanted.labels,
            identity={},
            created_us=now,
            volumes=row.volumes,
            expires_us=None if ttl_s is None else now + int(ttl_s * 1e6),
            template=template,
        )

    async def _save(self, fresh: SnapshotRow, sandbox_id: str, retention: Retention) -> SnapshotRow:
        parent: str | None = None
        try:
            row, saved = await self.checkpoint(sandbox_id, self._library.files.unfinished(fresh.id), fresh)
            parent = row.parent
            return await self._library.finish(_completed(fresh, row, saved), saved.checkpoint.files, retention)
        except BaseException:
            await self._library.give_up(fresh)
            self._set_parent(sandbox_id, fresh.id, parent)
            raise

    async def checkpoint(
        self, sandbox_id: str, directory: Path, snapshot: SnapshotRow | None = None, ahead: Ahead | None = None
    ) -> tuple[SandboxRow, Saved]:
        """``directory`` of a sandbox that is running, paused (and is so again afterwards), suspended or stopped; and what
        its row was then. ``snapshot`` becomes its parent. ``ahead`` hears of it while memory is saved."""

        async def held() -> tuple[SandboxRow, Saved]:
            row = self._sandboxes.registry.known(sandbox_id)
            saved = await self._saved(row, directory, what, ahead)
            if snapshot is not None:
                self._sandboxes.registry.update(sandbox_id, parent=snapshot.id)
            return row, saved

        what = "fork" if snapshot is None else "snapshot"
        return await self._sandboxes.changes.run(sandbox_id, what, held)

    async def _saved(self, row: SandboxRow, directory: Path, what: str, ahead: Ahead | None) -> Saved:
        if row.state in _AT_REST:
            return await asyncio.to_thread(self._linked, row, directory)
        live = self._sandboxes.registry.live.get(row.id)
        if live is None or row.state not in (SandboxState.RUNNING, SandboxState.PAUSED):
            raise not_running(row)
        await self._sandboxes.binding.bound(live)
        steps = None
        if ahead is not None and MEMORY in row.capabilities:
            steps = Steps(partial(ahead.begins, row), ahead.written)
        async with _unfrozen(live):
            return await self._sandboxes.save(live, directory, keep_running=True, reason=what, steps=steps)

    def _linked(self, row: SandboxRow, directory: Path) -> Saved:
        """What a sandbox at rest is on disk."""
        with storage_errors():
            link_files(self._sandboxes.saved.directory(row.id), directory)
        files = sorted(directory.iterdir())
        size = sum(file.stat().st_blocks * 512 for file in files)
        memory = row.state is SandboxState.SUSPENDED
        checkpoint = Checkpoint(memory, 0.0, tuple(file.name for file in files), size)
        return Saved(checkpoint, SavedIdentity.from_json(row.previous))

    def _set_parent(self, sandbox_id: str, before: str, parent: str | None) -> None:
        row = self._sandboxes.find(sandbox_id)
        if row is not None and row.parent == before:
            self._sandboxes.registry.update(sandbox_id, parent=parent)


def _completed(fresh: SnapshotRow, row: SandboxRow, saved: Saved) -> SnapshotRow:
    """With what the sandbox was at that moment: it may have changed since the call came."""
    now = {
        name: getattr(row, name) for name in ("parent", "env", "sudo", "volumes", "image", "image_digest", "resources")
    }
    return replace(
        fresh,
        **now,
        memory=fresh.memory and saved.checkpoint.memory,
        identity={} if saved.identity is None else saved.identity.to_json(),
        paused_us=int(saved.checkpoint.pause_s * 1e6),
    )


@asynccontextmanager
async def _unfrozen(live: Live) -> AsyncIterator[None]:
    """A guest that stands still cannot close its connections, so it runs in the body; a moment, and nobody reaches it."""
    if live.row.state is not SandboxState.PAUSED:
        yield
        return
    await live.driver.resume(live.row.id)
    try:
        yield
    finally:
        await live.driver.pause(live.row.id)


def link_files(source: Path, directory: Path) -> None:
    """The same files under another directory, which costs nothing; copies where the file system has no links. Blocks."""
    directory.mkdir(mode=0o700)
    for file in source.iterdir():
        try:
            os.link(file, directory / file.name)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            shutil.copy2(file, directory / file.name)


def check_memory(row: SandboxRow, wanted: bool | None) -> bool:
    """Whether memory is to be saved. `UnsupportedCapability` where it cannot be."""
    possible = MEMORY in row.capabilities and row.state is not SandboxState.STOPPED
    if wanted and not possible:
        why = "it is stopped" if MEMORY in row.capabilities else f"the driver {row.driver} saves files only"
        raise UnsupportedCapability(
            f"the memory of sandbox {row.id} cannot be saved: {why}",
            hint="give memory: false (--files-only) for the files alone; gvisor saves sandboxes with their memory",
            details={"driver": row.driver, "capability": MEMORY},
        )
    return possible if wanted is None else wanted
