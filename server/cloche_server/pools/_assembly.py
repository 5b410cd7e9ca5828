"""Templates, pools and the ways of a create, put together: the parts know each other only by what they need."""

from __future__ import annotations

from dataclasses import dataclass

from cloche_server.pools._creates import Creates, FromSnapshot
from cloche_server.pools._service import PoolService
from cloche_server.sandboxes import SandboxService
from cloche_server.snapshots._library import SnapshotLibrary
from cloche_server.state import Database, PoolStore, SandboxRow, TemplateStore
from cloche_server.templates import SandboxWorkshop, Save, TemplateService, TemplateStarts


@dataclass(frozen=True, slots=True)
class Warm:
    """`start` when sandboxes and snapshots are recovered, `close` before they are closed."""

    templates: TemplateService
    pools: PoolService
    creates: Creates
    sandboxes: SandboxService

    async def start(self) -> None:
        """Builds of before have failed, and what they left is removed; what is parked is ready again."""
        self.templates.recover()
        lives = list(self.sandboxes.registry.live.values())
        parked: list[SandboxRow] = [live.row for live in lives if live.row.pool is not None]
        await self.pools.start(parked)

    async def close(self) -> None:
        await self.pools.close()
        await self.templates.close()


def make_warm(
    database: Database,
    sandboxes: SandboxService,
    library: SnapshotLibrary,
    save: Save,
    from_snapshot: FromSnapshot,
    max_pools_per_owner: int,
) -> Warm:
    images, drivers = sandboxes.registry.images, sandboxes.drivers
    store = TemplateStore(database)
    starts = TemplateStarts(sandboxes, library, images)
    workshop = SandboxWorkshop(sandboxes, save, library, store, starts)
    templates = TemplateService(store, workshop, drivers, images)
    pools = PoolService(
        store=PoolStore(database),
        workshop=workshop,
        places=sandboxes,
        templates=templates,
        drivers=drivers,
        images=images,
        max_per_owner=max_pools_per_owner,
    )
    sandboxes.binding.foreground = pools.foreground.create
    return Warm(templates, pools, Creates(sandboxes, pools, templates, starts, from_snapshot), sandboxes)
