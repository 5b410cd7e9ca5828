"""A create that is served from a pool: one transaction, and a ready sandbox is somebody's.

Nothing is asked of the sandbox, which most often stands still: it was healthy when it was frozen, what stands still does not
change, and the driver sees when it is killed. Its guest hears of it when something needs it, or when there is time:
see `cloche_server.sandboxes._binding`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cloche.models import SandboxCreate
from cloche_server.clock import Clock
from cloche_server.ids import new_epoch
from cloche_server.pools._pool import LivePool
from cloche_server.sandboxes._live import Live
from cloche_server.state import IdempotencyClaim, PoolStore, SandboxRow
from cloche_server.templates import Workshop


class Claims:
    """Nothing here waits, so two creates never get the same, and no claim is left half done."""

    def __init__(self, store: PoolStore, workshop: Workshop, clock: Clock, monotonic: Callable[[], float]) -> None:
        self._store = store
        self._workshop = workshop
        self._clock = clock
        self._monotonic = monotonic

    def claim(
        self,
        pool: LivePool,
        owner: str,
        wanted: SandboxCreate,
        env: dict[str, str],
        key: IdempotencyClaim | None,
        begin: bool,
    ) -> SandboxRow | None:
        """It is ``owner``'s from now on. None: none is ready. ``begin``: its guest hears of it at once. `Conflict` when the
        name is in use."""
        assert pool.recipe is not None
        for parked in pool.stock.best(pool.recipe, self._monotonic(), pool.row.max_age_s):
            live = self._workshop.parked(parked.sandbox_id)
            if live is not None:  # else it ended, and the keeper has not seen it yet
                self._commit(live, owner, wanted, env, key)
                pool.stock.discard(parked.sandbox_id)
                self._workshop.handed_out(live, begin)
                return live.row
        return None

    def _commit(
        self, live: Live, owner: str, wanted: SandboxCreate, env: dict[str, str], key: IdempotencyClaim | None
    ) -> None:
        """Its life begins now: whoever gets it gets all of it."""
        row, now = live.row, self._clock()
        changes: dict[str, Any] = {
            **{name: getattr(wanted, name) for name in ("name", "labels", "metadata", "lifecycle")},
            "known_as": {"epoch": row.epoch, "env": row.env},
            "owner": owner,
            "env": env,
            "epoch": new_epoch(),
            **dict.fromkeys(("created_us", "started_us", "active_us", "born_us"), now),
            "origin": row.origin.model_copy(update={"warm": True}),
            "image": wanted.image if wanted.template is None else row.image,
        }
        live.row = self._store.claim(row, key, **changes)
        live.active_us = now
        live.uplink.be_claimed(live.row.epoch, live.row.env)
