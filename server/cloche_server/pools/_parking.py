"""Putting a sandbox into the stock: most stand still there, a few stay awake.

A guest that was frozen for a while has to catch up with its timers when it thaws: 5 ms of processor time on gVisor, 10 ms on
runc (measured). So the ones that are handed out next are kept awake.
"""

from __future__ import annotations

from typing import Final

from cloche_server.pools._pool import LivePool
from cloche_server.pools.parked import Parked
from cloche_server.relay import GuestCall, call_guest
from cloche_server.sandboxes._live import Live
from cloche_server.templates import Workshop

AWAKE: Final = 2
"""Of each pool: an idle sandbox on gVisor takes 16 ms of processor time in each second, on runc 1.5 ms (measured)."""

WARM_UP: Final = GuestCall("POST", "/v1/warm-up", {200, 204, 404}, bound_s=15.0, body=b'{"code": "1"}')
"""Restored memory comes into use page by page: without this, and hearing who it is, the first cell after a claim takes 10 ms
longer on gVisor (measured). It goes the way of every run, as what it has not touched is slow. 404: of a guest that was saved
by an older version."""

ROUNDS: Final = 3
"""Of warming up. After one, the first two cells took 5 ms more processor time each than later ones on gVisor (7 claims);
after three, the second takes what they take (measured)."""

HEALTH: Final = GuestCall("GET", "/v1/health", {200}, bound_s=5.0)
"""On a busy machine too: to throw away what is healthy makes it busier."""


async def park(pool: LivePool, one: Parked, live: Live, workshop: Workshop) -> None:
    """Healthy, and not in the stock; it is when this returns. Raises what `settle_down` and a driver's pause do."""
    await _settle_down(live, workshop)
    one.frozen = pool.stock.awake >= AWAKE and await workshop.freeze(live)
    pool.stock.put(one)


async def wake_next(pool: LivePool, workshop: Workshop) -> None:
    """The oldest ones are handed out next: let as many be awake as should be. They may be claimed meanwhile."""
    while pool.stock.awake < AWAKE and (one := pool.stock.oldest_frozen()) is not None:
        one.frozen = False
        live = workshop.parked(one.sandbox_id)
        if live is not None:
            await workshop.thaw(live)


async def check_health(live: Live) -> None:
    """Raises what `call_guest` does."""
    await _ask(live, HEALTH)


async def _ask(live: Live, call: GuestCall) -> None:
    answer = await call_guest(live.uplink.pool, call, 65_536)
    try:
        await answer.whole(65_536)
    finally:
        answer.close()


async def _settle_down(live: Live, workshop: Workshop) -> None:
    """Nothing is under way between it and the server: then it can be frozen for long.

    The second answer shows that the guest has seen what the server said before.
    """
    for _ in range(ROUNDS):
        await _ask(live, WARM_UP)
        await workshop.tell_again(live)
    await live.uplink.quiet()
    await check_health(live)
