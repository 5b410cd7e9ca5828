"""Rolling a sandbox back, in place.

The snapshot's files are put where a sandbox at rest is kept, under a name aside; the row is then ``restoring`` with whom the
snapshot's guest believes to be, and which snapshot it is; only then what runs is ended and the files get their place. From
there on it is a wake. So at every moment there is a process, or files on disk, or both:

| the server dies | the next one finds | and makes of it |
|---|---|---|
| before the row is ``restoring`` | what was before | what was before |
| after that | ``restoring`` | the files aside get their place, if they have not; suspended, or stopped |
| after the new guest's hello | ``restoring`` and alive | running |
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Any, Final

from cloche.errors import InvalidRequest
from cloche.models import SandboxState
from cloche_server.ids import new_epoch
from cloche_server.lifecycle import Event, next_state
from cloche_server.sandboxes import SandboxService, SavedIdentity
from cloche_server.snapshots._files import storage_errors
from cloche_server.snapshots._library import SnapshotLibrary
from cloche_server.snapshots._saver import MEMORY, link_files
from cloche_server.state import SandboxRow, SnapshotRow

_LOG: Final = logging.getLogger("cloche.snapshots")

ASIDE: Final = ".next"
"""Behind the name of the sandbox: what it is about to be. No sandbox has such an id, so a new server removes it."""


class Restorer:
    """One for the server."""

    def __init__(self, library: SnapshotLibrary, sandboxes: SandboxService) -> None:
        self._library = library
        self._sandboxes = sandboxes

    async def restore(self, row: SandboxRow, snapshot: SnapshotRow) -> SandboxRow:
        """
        Raises:
            SnapshotBroken: and nothing has changed.
            InvalidRequest: the snapshot is of another driver.
            SandboxStartFailed: it is suspended (stopped, without memory) as it was in the snapshot; `resume` tries again.
        """
        if row.driver != snapshot.driver:
            problem = f"the snapshot is of driver {snapshot.driver}, and sandbox {row.id} of {row.driver}"
            raise InvalidRequest(problem, details={"errors": [{"field": "snapshot", "problem": problem}]})

        async def held() -> SandboxRow:
            async with self._library.using(snapshot) as directory:
                return await self._restore(row.id, snapshot, directory)

        return await self._sandboxes.changes.run(row.id, "restore", held)

    async def _restore(self, sandbox_id: str, snapshot: SnapshotRow, directory: Path) -> SandboxRow:
        registry = self._sandboxes.registry
        next_state(registry.known(sandbox_id).state, Event.RESTORE, sandbox_id)
        # What cannot work is found out while the sandbox still runs.
        await asyncio.to_thread(registry.images.resolve, snapshot.image_digest)
        await asyncio.to_thread(self._put_aside, sandbox_id, directory)
        live = self._sandboxes.release(sandbox_id)
        registry.happen(sandbox_id, Event.RESTORE, saved_us=self._library.clock(), **_changes(snapshot))
        try:
            if live is not None:
                await self._sandboxes.end_life(live)
            await asyncio.to_thread(self._place, sandbox_id)
            await self._start(registry.known(sandbox_id), snapshot)
        except BaseException:
            self._keep(sandbox_id, snapshot)
            raise
        _LOG.info("sandbox restored", extra={"sandbox_id": sandbox_id, "snapshot_id": snapshot.id})
        await asyncio.to_thread(self._sandboxes.saved.remove, sandbox_id)
        return registry.known(sandbox_id)

    async def _start(self, row: SandboxRow, snapshot: SnapshotRow) -> None:
        await self._sandboxes.start_saved(
            row,
            self._sandboxes.saved.directory(row.id),
            SavedIdentity.from_json(snapshot.identity),
            reason="restore",
            end_all=not snapshot.memory and MEMORY in row.capabilities,
        )

    def _aside(self, sandbox_id: str) -> Path:
        return self._sandboxes.saved.directory(sandbox_id + ASIDE)

    def _put_aside(self, sandbox_id: str, directory: Path) -> None:
        aside = self._aside(sandbox_id)
        shutil.rmtree(aside, ignore_errors=True)
        with storage_errors():
            link_files(directory, aside)
            self._sandboxes.saved.make_durable(aside.name)

    def _place(self, sandbox_id: str) -> None:
        if self._aside(sandbox_id).is_dir():
            self._sandboxes.saved.remove(sandbox_id)
            self._aside(sandbox_id).rename(self._sandboxes.saved.directory(sandbox_id))
            self._sandboxes.saved.make_durable(sandbox_id)

    def _keep(self, sandbox_id: str, snapshot: SnapshotRow) -> None:
        """Nothing waits here: this may run while a delete has cancelled everything."""
        row = self._sandboxes.registry.row(sandbox_id)
        if row is not None and row.state is SandboxState.RESTORING:
            self._place(sandbox_id)
            self._sandboxes.registry.happen(sandbox_id, Event.KEPT_MEMORY if snapshot.memory else Event.KEPT_FILES)

    async def recover(self) -> None:
        """Before the sandboxes are: what was being rolled back is put in its place."""
        for row in self._sandboxes.store.with_state(SandboxState.RESTORING):
            await asyncio.to_thread(self._place, row.id)


def _changes(snapshot: SnapshotRow) -> dict[str, Any]:
    """Of the row: it is what the snapshot's sandbox was, in a new life; what it is called and how long it lives stays."""
    state = SandboxState.SUSPENDED if snapshot.memory else SandboxState.STOPPED
    taken = {name: getattr(snapshot, name) for name in ("image", "image_digest", "resources", "sudo", "env", "volumes")}
    return {
        **taken,
        "epoch": new_epoch(),
        "token_hash": snapshot.identity.get("session_hash", ""),
        "previous": {**snapshot.identity, "state": state.value},
        "parent": snapshot.id,
        "known_as": None,
    }
