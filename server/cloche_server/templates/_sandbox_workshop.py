"""The `Workshop` over the sandbox service and the snapshots of this server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from cloche.errors import ClocheError, Gone
from cloche.models import SandboxCreate
from cloche_server.drivers import RunState
from cloche_server.sandboxes import Claim, SandboxService
from cloche_server.sandboxes._live import Live
from cloche_server.snapshots._library import SnapshotLibrary
from cloche_server.state import SandboxRow, SnapshotRow, TemplateStore
from cloche_server.templates._spec import parse_reference
from cloche_server.templates._starting import TemplateStarts

_LOG: Final = logging.getLogger("cloche.templates")


Save = Callable[[SandboxRow, str], Awaitable[SnapshotRow]]
"""Of a running sandbox, for the template's version."""


class SandboxWorkshop:
    """See `Workshop`."""

    def __init__(
        self,
        sandboxes: SandboxService,
        save: Save,
        library: SnapshotLibrary,
        templates: TemplateStore,
        starts: TemplateStarts,
    ) -> None:
        self._sandboxes = sandboxes
        self._save = save
        self._library = library
        self._templates = templates
        self._starts = starts

    async def make(self, owner: str, wanted: SandboxCreate, pool: str) -> Live:
        ids: list[str] = []
        try:
            row = await self._make(owner, wanted, pool, ids.append)
        except asyncio.CancelledError:
            # A create goes on without its caller; nobody would ever look for this one.
            for sandbox_id in ids:
                await asyncio.shield(self.discard(sandbox_id))
            raise
        live = self.parked(row.id)
        if live is None:
            raise Gone(f"sandbox {row.id} ended at once", details={"kind": "sandbox", "id": row.id})
        return live

    async def _make(self, owner: str, wanted: SandboxCreate, pool: str, claim: Claim) -> SandboxRow:
        if wanted.template is None:
            return await self._sandboxes.create(owner, wanted, claim, pool=pool)
        name, version = parse_reference(wanted.template)
        template = self._templates.get(owner, name, version or 0)
        assert template is not None, "pools name versions that are ready"
        return await self._starts.start(template, wanted, owner=owner, pool=pool, claim=claim)

    def parked(self, sandbox_id: str) -> Live | None:
        live = self._sandboxes.registry.live.get(sandbox_id)
        if live is None or live.row.pool is None or live.driver.is_dying(sandbox_id):
            return None
        return live

    def belongs_to(self, live: Live, pool: str) -> None:
        live.row = self._sandboxes.store.update(live.row, pool=pool)

    async def freeze(self, live: Live) -> bool:
        if "pause" not in live.driver.capabilities:
            return False
        await live.driver.pause(live.row.id)
        return True

    async def is_frozen(self, live: Live) -> bool:
        return (await live.driver.inspect(live.row.id)).state is RunState.PAUSED

    async def thaw(self, live: Live) -> None:
        if "pause" in live.driver.capabilities:
            await live.driver.resume(live.row.id)

    async def tell_again(self, live: Live) -> None:
        await self._sandboxes.binding.tell_again(live)

    def handed_out(self, live: Live, begin: bool) -> None:
        self._sandboxes.registry.changed(live.row.id)
        if begin:
            self._sandboxes.binding.begin_at_once(live)

    async def bind_next(self) -> bool:
        live = self._sandboxes.binding.next_unbound()
        if live is None:
            return False
        with suppress(ClocheError):  # it is in the log, and whoever needs the sandbox is told
            await asyncio.shield(self._sandboxes.binding.begin(live))
        return True

    async def save(self, live: Live, reference: str) -> str:
        return (await self._save(live.row, reference)).id

    async def discard(self, sandbox_id: str) -> None:
        row = self._sandboxes.registry.row(sandbox_id)
        if row is not None and row.pool is None:
            _LOG.error("a sandbox that is somebody's was to be thrown away", extra={"sandbox_id": sandbox_id})
            return
        try:
            await self._sandboxes.end(sandbox_id)
        except Gone:
            pass
        except Exception:
            _LOG.exception("a sandbox could not be removed", extra={"sandbox_id": sandbox_id})
            return
        self._sandboxes.forget(sandbox_id)

    async def discard_snapshot(self, snapshot_id: str) -> None:
        row = self._library.store.get(snapshot_id)
        if row is not None and row.state != "deleted":
            await self._library.remove(row)

    def has_snapshot(self, snapshot_id: str) -> bool:
        row = self._library.store.get(snapshot_id)
        return row is not None and row.state == "ready"
