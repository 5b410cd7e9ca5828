"""Snapshots for everything else in the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from cloche.models import Compare, Comparison, Fork, ForkResult, SandboxCreate, SnapshotCreate
from cloche_server.auth import Principal
from cloche_server.routing import BodySink
from cloche_server.sandboxes import Claim, Live, SandboxService
from cloche_server.snapshots._compare import compare
from cloche_server.snapshots._guest_view import GuestView
from cloche_server.snapshots._library import SnapshotLibrary, is_snapshot_id
from cloche_server.snapshots._maker import Maker, Planned
from cloche_server.snapshots._repeated import Repeated
from cloche_server.snapshots._restorer import Restorer
from cloche_server.snapshots._saver import Saver
from cloche_server.snapshots._transfer import Import, export
from cloche_server.state import KeptAnswers, SandboxRow, SnapshotRow

_LOG: Final = logging.getLogger("cloche.snapshots")

HIDDEN: Final = "@compare"
"""Where a snapshot that is compared is parked; no pool has such a name, so nobody is ever given one."""

EXPIRY_S: Final = 5.0
"""Between two looks for snapshots whose time is over."""


class SnapshotService:
    """One for the server. `recover`, then `start`; `close` at the end."""

    def __init__(
        self, library: SnapshotLibrary, sandboxes: SandboxService, kept: KeptAnswers, archive_key: bytes
    ) -> None:
        self.library: Final = library
        self._sandboxes = sandboxes
        self._archive_key = archive_key
        self._saver = Saver(library, sandboxes)
        self._maker = Maker(library, sandboxes, self._saver)
        self._restorer = Restorer(library, sandboxes)
        self.repeated: Final = Repeated(self, kept, sandboxes.registry.row, library.store.get)
        """`create` and `fork` with an idempotency key."""
        self._forks: set[asyncio.Task[ForkResult]] = set()
        self._expiry: asyncio.Task[None] | None = None

    # Life of the service

    async def recover(self) -> None:
        """Before the sandboxes are recovered, and before the first request is served."""
        await self.library.recover()
        await self._restorer.recover()

    def start(self) -> None:
        self._expiry = asyncio.create_task(self._expire(), name="expiry of snapshots")

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_S)
            try:
                await self.library.remove_expired()
            except Exception:
                _LOG.exception("expired snapshots could not be removed")

    async def close(self, bound_s: float = 60.0) -> None:
        """Waits for what is being saved and forked."""
        if self._expiry is not None:
            self._expiry.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._expiry
        await self._saver.close(bound_s)
        if self._forks:
            await asyncio.wait(self._forks, timeout=bound_s)
        await self._maker.close(bound_s)
        await self.library.close()

    # Making

    async def create(
        self,
        principal: Principal,
        sandbox_id: str,
        wanted: SnapshotCreate,
        planned: Claim | None = None,
    ) -> SnapshotRow:
        """See `Saver.save`."""
        return await self._saver.save(self._sandboxes.get(principal, sandbox_id), wanted, planned=planned)

    async def save_for_template(self, row: SandboxRow, reference: str) -> SnapshotRow:
        """Of a builder, which nobody sees; it is deleted with the template only."""
        return await self._saver.save(row, SnapshotCreate(), template=reference)

    async def restore(self, principal: Principal, sandbox_id: str, reference: str) -> SandboxRow:
        """See `Restorer.restore`."""
        row = self._sandboxes.get(principal, sandbox_id)
        return await self._restorer.restore(row, self.library.get(principal, reference))

    async def create_sandbox(
        self, principal: Principal, wanted: SandboxCreate, claim: Claim | None = None
    ) -> SandboxRow:
        """See `Maker.create`."""
        return await self._maker.create(principal, wanted, claim)

    async def fork(
        self, principal: Principal, sandbox_id: str, wanted: Fork, planned: Planned | None = None
    ) -> ForkResult:
        """See `Maker.fork`. It goes on when the caller goes away."""
        row = self._sandboxes.get(principal, sandbox_id)
        task = asyncio.create_task(self._maker.fork(row, wanted, planned), name=f"fork {sandbox_id}")
        self._forks.add(task)
        task.add_done_callback(self._forks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    # Out and in

    async def export(self, principal: Principal, reference: str) -> tuple[str, AsyncGenerator[bytes, None]]:
        """A name for the file, and its content. See `cloche_server.snapshots._transfer.export`."""
        row = self.library.get(principal, reference)
        return row.name or row.id, await export(self.library, row, self._archive_key)

    def open_import(self, principal: Principal, name: str | None) -> BodySink:
        """Takes what `export` wrote."""
        registry = self._sandboxes.registry
        return Import(
            self.library, principal, name, key=self._archive_key, images=registry.images, drivers=registry.drivers
        )

    # Comparing

    async def compare(self, principal: Principal, wanted: Compare) -> Comparison:
        """Sandboxes are woken as by any call into them; snapshots are started, out of sight, and removed."""
        async with (
            self._seen(principal, wanted.before) as before,
            self._seen(principal, wanted.after) as after,
        ):
            return await compare(before, after, wanted)

    @asynccontextmanager
    async def _seen(self, principal: Principal, reference: str) -> AsyncIterator[GuestView]:
        if not is_snapshot_id(reference) and len(reference) == SANDBOX_ID_LENGTH:
            yield _view(await self._sandboxes.awake(principal, reference))
            return
        snapshot = self.library.get(principal, reference)
        row = await self._maker.create_hidden(snapshot, HIDDEN)
        try:
            yield _view(self._sandboxes.registry.live[row.id])
        finally:
            await asyncio.shield(self._discard(row))

    async def _discard(self, row: SandboxRow) -> None:
        await self._sandboxes.end(row.id)
        self._sandboxes.forget(row.id)


SANDBOX_ID_LENGTH: Final = 20


def _view(live: Live) -> GuestView:
    return GuestView(live.uplink.pool, "root" if live.row.sudo else "user")
