"""Which way a create goes: out of a pool, from a snapshot, from a template, or from an image."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from cloche.models import SandboxCreate
from cloche_server.auth import Principal
from cloche_server.pools._service import PoolService
from cloche_server.sandboxes import Claim, SandboxService
from cloche_server.state import IdempotencyClaim, SandboxRow
from cloche_server.templates import TemplateService, TemplateStarts, check_only_bound_late


class FromSnapshot(Protocol):
    """`cloche_server.snapshots.SnapshotService.create`."""

    async def __call__(self, principal: Principal, wanted: SandboxCreate, claim: Claim | None, /) -> SandboxRow: ...


class Creates:
    """All of them give equal sandboxes for equal wishes."""

    def __init__(
        self,
        sandboxes: SandboxService,
        pools: PoolService,
        templates: TemplateService,
        starts: TemplateStarts,
        from_snapshot: FromSnapshot,
    ) -> None:
        self._sandboxes: Final = sandboxes
        self._pools: Final = pools
        self._templates: Final = templates
        self._starts: Final = starts
        self._from_snapshot: Final = from_snapshot

    async def create(
        self,
        principal: Principal,
        wanted: SandboxCreate,
        key: IdempotencyClaim | None = None,
        claim: Claim | None = None,
    ) -> SandboxRow:
        """The running sandbox. ``key`` is written with a warm claim, ``claim`` is told the id of one that is made.

        Raises what the way it goes does; nothing is left of a create that fails.
        """
        if wanted.template is not None:
            check_only_bound_late(wanted)
        alone = self._pools.foreground.is_quiet
        with self._pools.foreground.create():
            ready = self._pools.claim(principal.owner, wanted, key, begin=alone)
            if ready is None:
                return await self._make(principal, wanted, claim)
            if alone:
                await asyncio.sleep(0)  # its guest is told while the answer is made, not after that
            return ready

    async def _make(self, principal: Principal, wanted: SandboxCreate, claim: Claim | None) -> SandboxRow:
        if wanted.snapshot is not None:
            return await self._from_snapshot(principal, wanted, claim)
        if wanted.template is not None:
            template = self._templates.ready(principal.owner, wanted.template)
            return await self._starts.start(template, wanted, owner=principal.owner, claim=claim)
        return await self._sandboxes.create(principal.owner, wanted, claim)
