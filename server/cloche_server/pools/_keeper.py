"""Keeps the pools as full as they want to be: fills, checks, removes, and tells those that were handed out who they are. Three
loops, so that a slow fill delays nothing else.

One fill at a time, of all pools: a fill keeps a core busy, and two of them would not be faster on two cores that do other
things, too. The pool that lacks the greatest part of what it wants comes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

from cloche.errors import ClocheError
from cloche.models import SandboxCreate
from cloche_server.pools._foreground import Foreground
from cloche_server.pools._parking import check_health, park, wake_next
from cloche_server.pools._pool import LivePool
from cloche_server.pools.parked import Parked
from cloche_server.pools.recipe import create_of, recipe_of_row
from cloche_server.sandboxes._live import Live
from cloche_server.templates import FILLING, Guest, Workshop, start_default_context

_LOG: Final = logging.getLogger("cloche.pools")

ROUND_S: Final = 1.0
"""Between looks at the pools when nothing has happened: targets fade and sandboxes age by themselves."""

CHECK_EVERY_S: Final = 30.0
"""Between health checks of one that is awake. One that stands still is as it was."""

DIAL_AGAIN_S: Final = 30.0
"""For a guest whose server was away; it tries every 5 s at least."""


class Pools(Protocol):
    """What the keeper keeps."""

    def all(self) -> Iterable[LivePool]: ...

    def refresh(self, pool: LivePool) -> None:
        """Sets the recipe by which it is to be filled now."""

    def room(self, pool: LivePool) -> int:
        """Sandboxes the server may have more than those that are not this pool's."""


class Keeper:
    """`start`, then `close`."""

    def __init__(
        self, pools: Pools, workshop: Workshop, foreground: Foreground, monotonic: Callable[[], float]
    ) -> None:
        self._pools = pools
        self._workshop = workshop
        self._foreground = foreground
        self._monotonic = monotonic
        self._wakes = (asyncio.Event(), asyncio.Event(), asyncio.Event())
        self._tasks: list[asyncio.Task[None]] = []
        self._adopting: set[asyncio.Task[None]] = set()
        self._one_by_one = asyncio.Lock()

    def start(self) -> None:
        filling, tending, binding = self._wakes
        self._tasks = [
            asyncio.create_task(_again(self._fill_one, filling), name="fill pools"),
            asyncio.create_task(_again(self._tend, tending), name="tend pools"),
            asyncio.create_task(_again(self._bind_one, binding), name="bind what pools gave"),
        ]

    def adopt(self, pool: LivePool, parked: Parked) -> None:
        """One of a server before this: ready when it stands still, as only healthy ones do, or when its guest has dialled
        again. Until then it counts as being filled."""
        pool.filling += 1
        task = asyncio.create_task(self._adopt(pool, parked), name=f"adopt {parked.sandbox_id}")
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _adopt(self, pool: LivePool, parked: Parked) -> None:
        try:
            live = self._workshop.parked(parked.sandbox_id)
            if live is None:
                raise _Lost("it ended")
            if await self._workshop.is_frozen(live):
                parked.frozen = True
                pool.stock.put(parked)
                return
            async with asyncio.timeout(DIAL_AGAIN_S):
                await live.uplink.wait_greeted()
            parked.checked = self._monotonic()
            async with self._one_by_one:
                await self._park(pool, parked, live)
        except (ClocheError, TimeoutError, _Lost) as error:
            await self._remove_broken(pool, parked, str(error))
        finally:
            pool.filling -= 1
            self.wake()

    def wake(self) -> None:
        """Something has changed: look now."""
        for event in self._wakes:
            event.set()

    async def close(self) -> None:
        """A fill under way is given up, and its sandbox removed."""
        tasks = [*self._tasks, *self._adopting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Filling

    async def _fill_one(self) -> bool:
        """True when there may be more to do at once. Not even a look is taken while somebody waits for a sandbox."""
        await self._foreground.quiet()
        pool = self._neediest()
        if pool is None:
            return False
        await self._fill(pool)
        return True

    def _neediest(self) -> LivePool | None:
        """The one that lacks the greatest part of its target."""
        now = self._monotonic()
        best: tuple[float, LivePool] | None = None
        for pool in self._pools.all():
            self._pools.refresh(pool)
            room = self._pools.room(pool)
            lacking = pool.lacking(now, room)
            if lacking:
                part = lacking / pool.target(now, room)
                best = max(best, (part, pool), key=lambda one: one[0]) if best else (part, pool)
        return best[1] if best else None

    async def _fill(self, pool: LivePool) -> None:
        began = self._monotonic()
        pool.filling += 1
        try:
            live = await self._make(pool)
        except Exception as error:  # a defect must not end the loop
            pause = pool.failed(self._monotonic())
            expected = isinstance(error, ClocheError)
            _LOG.log(
                logging.WARNING if expected else logging.ERROR,
                "a pool could not be filled",
                extra={"pool": pool.row.name, "why": str(error), "pause_s": pause},
                exc_info=None if expected else error,
            )
            return
        finally:
            pool.filling -= 1
        now = self._monotonic()
        one = Parked(live.row.id, recipe_of_row(live.row), now, now)
        try:
            await self._park(pool, one, live)
        except ClocheError as error:
            await self._remove_broken(pool, one, error.message)
            pool.failed(self._monotonic())  # the next one would break, too
        else:
            pool.filled(now - began)

    async def _park(self, pool: LivePool, parked: Parked, live: Live) -> None:
        """The pool may have been deleted meanwhile."""
        await park(pool, parked, live, self._workshop)
        if pool not in self._pools.all() and pool.stock.discard(parked.sandbox_id) is not None:
            await self._workshop.discard(parked.sandbox_id)

    async def _remove_broken(self, pool: LivePool, one: Parked, why: str) -> None:
        _LOG.warning("a ready sandbox is broken", extra={"sandbox_id": one.sandbox_id, "why": why})
        pool.broken += 1
        await self._workshop.discard(one.sandbox_id)

    async def _make(self, pool: LivePool) -> Live:
        """Running, and with the default context started where no template says what is."""
        assert pool.recipe is not None
        recipe = pool.recipe
        wanted = (
            SandboxCreate(template=recipe.template, warm=False) if recipe.template is not None else create_of(pool.row)
        )
        live = await self._workshop.make(pool.row.owner, wanted, FILLING)
        if recipe.template is None:
            try:
                await start_default_context(Guest(live.uplink.pool))
            except BaseException:
                await asyncio.shield(self._workshop.discard(live.row.id))
                raise
        self._workshop.belongs_to(live, pool.row.name)
        return live

    # Tending

    async def _tend(self) -> bool:
        """Removes what is unwanted or dead, and looks after the one whose check is longest ago. True: look again at once."""
        await self._foreground.quiet()
        busy = False
        for pool in list(self._pools.all()):
            self._pools.refresh(pool)
            await self._remove_unwanted(pool)
            due = pool.stock.due(self._monotonic(), CHECK_EVERY_S)
            if due is not None and self._foreground.is_quiet:
                await self._check(pool, due)
                busy = True
            if self._foreground.is_quiet:
                await wake_next(pool, self._workshop)
        return busy

    async def _remove_unwanted(self, pool: LivePool) -> None:
        now = self._monotonic()
        wanted = pool.target(now, self._pools.room(pool))
        for one in pool.stock.unwanted(pool.recipe, now, pool.row.max_age_s, wanted):
            if pool.stock.discard(one.sandbox_id) is not None:  # else it was claimed while another one was removed
                await self._workshop.discard(one.sandbox_id)
        for one in pool.stock.all():
            if self._workshop.parked(one.sandbox_id) is None and pool.stock.discard(one.sandbox_id) is not None:
                pool.broken += 1
                await self._workshop.discard(one.sandbox_id)
                self.wake()

    async def _check(self, pool: LivePool, one: Parked) -> None:
        """Asked twice: once is what a busy machine makes of a healthy one. It may be claimed meanwhile."""
        one.checked = self._monotonic()
        why = ""
        for _ in range(2):
            live = self._workshop.parked(one.sandbox_id)
            if live is None:
                return  # it is somebody's; or it ended, and is removed in the next round
            try:
                await check_health(live)
            except ClocheError as error:
                why = error.message
            else:
                return
        if pool.stock.discard(one.sandbox_id) is not None:
            await self._remove_broken(pool, one, why)

    # Of those that were handed out

    async def _bind_one(self) -> bool:
        """True: there may be another one. Those that are used at once do not wait for this."""
        await self._foreground.quiet()
        return await self._workshop.bind_next()


class _Lost(Exception):
    """It is not there any more."""


async def _again(step: Callable[[], Coroutine[Any, Any, bool]], wake: asyncio.Event) -> None:
    """``step`` for ever: at once while it says so, else when woken or after `ROUND_S`."""
    while True:
        wake.clear()
        try:
            again = await step()
        except Exception:
            _LOG.exception("the keeper of pools met a defect")
            again = False
        if not again:
            try:
                async with asyncio.timeout(ROUND_S):
                    await wake.wait()
            except TimeoutError:
                pass
