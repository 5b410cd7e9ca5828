"""Putting a sandbox into the stock: most stand still there, a few stay awake.

A guest that was frozen for a while has to catch up with its timers when it thaws: 5 ms of processor time on gVisor, 10 ms on
runc (measured). So the ones that are handed out next are kept awake, and a rush thaws the others.
"""

from __future__ import annotations

from typing import Final

from cloche_server.pools._binding import settle_down
from cloche_server.pools._pool import LivePool
from cloche_server.pools.parked import Parked
from cloche_server.sandboxes._live import Live
from cloche_server.templates import Workshop

AWAKE: Final = 2
"""Of each pool: an idle sandbox on gVisor takes 16 ms of processor time in each second, on runc 1.5 ms (measured)."""


async def park(pool: LivePool, one: Parked, live: Live, workshop: Workshop) -> None:
    """Healthy, and not in the stock; it is when this returns. Raises what `settle_down` and a driver's pause do."""
    await settle_down(live)
    one.frozen = pool.stock.awake >= AWAKE
    if one.frozen:
        await workshop.freeze(live)
    pool.stock.put(one)


async def wake_next(pool: LivePool, workshop: Workshop) -> None:
    """The oldest ones are handed out next: let as many be awake as should be. They may be claimed meanwhile."""
    while pool.stock.awake < AWAKE and (one := pool.stock.oldest_frozen()) is not None:
        one.frozen = False
        live = workshop.parked(one.sandbox_id)
        if live is not None:
            await workshop.thaw(live)
