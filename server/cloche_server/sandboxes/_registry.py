"""Rows and live sandboxes: the one place that changes either, so that both always say the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from cloche.errors import Gone
from cloche.models import SandboxState
from cloche_server.clock import Clock
from cloche_server.lifecycle import Event, next_state
from cloche_server.metrics import Metrics
from cloche_server.sandboxes._drivers import DriverSet
from cloche_server.sandboxes._live import Live
from cloche_server.sandboxes._saved import SavedStates
from cloche_server.sandboxes._seams import Images, Limits
from cloche_server.state import SandboxRow, SandboxStore
from cloche_server.uplink import UplinkHub


class Registry:
    """What the parts of the sandbox service share. It knows no driver's ways and starts no task."""

    def __init__(
        self,
        *,
        store: SandboxStore,
        hub: UplinkHub,
        drivers: DriverSet,
        images: Images,
        limits: Limits,
        saved: SavedStates,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.store: Final = store
        self.hub: Final = hub
        self.drivers: Final = drivers
        self.images: Final = images
        self.limits: Final = limits
        self.saved: Final = saved
        self.clock: Final = clock
        self.metrics: Final = metrics
        self.live: Final[dict[str, Live]] = {}
        self.changed: Callable[[str], None] = _nobody
        """Called with the id after every change of a row."""
        self.life_ends: Callable[[SandboxRow], Awaitable[None]] = _not_measured
        """Called before the processes of a sandbox are ended, or what is left of them is removed; never fails."""

    def row(self, sandbox_id: str) -> SandboxRow | None:
        """The newest; also of a deleted one."""
        live = self.live.get(sandbox_id)
        return self.store.get(sandbox_id) if live is None else self._fresh(live)

    def known(self, sandbox_id: str) -> SandboxRow:
        """For what happens to sandboxes that were seen before. `Gone` when it is deleted."""
        row = self.row(sandbox_id)
        if row is None or row.state is SandboxState.DELETED:
            raise gone(sandbox_id)
        return row

    def update(self, sandbox_id: str, **changes: Any) -> SandboxRow:
        """`Conflict` when the name is taken."""
        live = self.live.get(sandbox_id)
        if live is not None:
            changes.setdefault("active_us", live.active_us)
        row = self.store.update(self.known(sandbox_id), **changes)
        if live is not None:
            live.row = row
        self.changed(sandbox_id)
        return row

    def happen(self, sandbox_id: str, event: Event, **changes: Any) -> SandboxRow:
        """Into the state that follows. Raises what `next_state` does."""
        state = next_state(self.known(sandbox_id).state, event, sandbox_id)
        return self.update(sandbox_id, state=state, **changes)

    def bound(self, live: Live) -> None:
        """Its guest goes by what the row says."""
        if self.live.get(live.row.id) is live:
            live.row = self.store.update(live.row, known_as=None)

    def touch(self, sandbox_id: str) -> None:
        """A call went into it now. Cheap: nothing is written."""
        live = self.live.get(sandbox_id)
        if live is not None:
            live.active_us = self.clock()

    @staticmethod
    def _fresh(live: Live) -> SandboxRow:
        return live.row if live.row.active_us >= live.active_us else replace(live.row, active_us=live.active_us)


def _nobody(_sandbox_id: str) -> None:
    return


async def _not_measured(_row: SandboxRow) -> None:
    return


def gone(sandbox_id: str) -> Gone:
    return Gone(f"sandbox {sandbox_id} was deleted", details={"kind": "sandbox", "id": sandbox_id})
