"""A create that is served from a pool: one call into the guest, one transaction, and it is somebody's.

The oldest ready one is told who it is now. If it has not answered after 50 ms and there is another, that one is told,
too, and the first that answers is handed out; the others go back into the stock when they have answered and have
been told so, or are removed when they have not. So neither a broken sandbox nor a busy machine makes a create fail or wait
for long, and a machine that is busy does not lose its stock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloche.errors import ClocheError
from cloche.models import SandboxCreate
from cloche_server.clock import Clock
from cloche_server.ids import new_epoch
from cloche_server.pools._binding import bind, unbind
from cloche_server.pools._parking import park
from cloche_server.pools._pool import LivePool
from cloche_server.pools.parked import Parked
from cloche_server.sandboxes._live import Live
from cloche_server.state import IdempotencyClaim, PoolStore, SandboxRow
from cloche_server.templates import Workshop

_LOG: Final = logging.getLogger("cloche.pools")

PATIENCE_S: Final = 0.05
"""Until another one is tried, too. An answer takes 2 to 5 ms."""

BUSY_PATIENCE_S: Final = 1.0

LAST_PATIENCE_S: Final = 3.0
"""When there is no other, and for one that is on its way back. A cold start is not faster on a machine so busy."""

AT_ONCE: Final = 4
"""Claims that talk to guests. A hundred at once would make each of them slow, and look broken."""


@dataclass(frozen=True, slots=True, eq=False)
class _Try:
    """One ready sandbox that is being told. ``answer`` is None when it did not take it on."""

    parked: Parked
    live: Live
    epoch: str
    answer: asyncio.Task[bool]


class Claims:
    """Owns the tries that were too slow; `close` waits for them."""

    def __init__(
        self,
        store: PoolStore,
        workshop: Workshop,
        clock: Clock,
        monotonic: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._workshop = workshop
        self._clock = clock
        self._monotonic = monotonic
        self._wake = wake
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def claim(
        self, pool: LivePool, wanted: SandboxCreate, env: Mapping[str, str], key: IdempotencyClaim | None
    ) -> SandboxRow | None:
        """None: none was ready, or none answered. `Conflict` when the name was taken meanwhile."""
        self._under_way += 1
        try:
            async with self._turn:
                won = await self._first(pool, dict(env))
        finally:
            self._under_way -= 1
        if won is None:
            return None
        try:
            return self._commit(won, wanted, dict(env), key)
        except BaseException:
            self._give_back(pool, won)
            raise

    async def _first(self, pool: LivePool, env: dict[str, str]) -> _Try | None:
        tries: list[_Try] = []
        won: _Try | None = None
        ends: float | None = None
        try:
            while won is None:
                now, fresh = self._monotonic(), self._next(pool, env)
                if fresh is not None:
                    tries.append(fresh)
                    ends, wait_s = None, self._patience_s
                else:
                    ends = now + LAST_PATIENCE_S if ends is None else ends
                    wait_s = ends - now
                if not await _something(tries, pool, wait_s) and fresh is None:
                    return None
                won = next((one for one in tries if one.answer.done() and one.answer.result()), None)
            return won
        finally:
            for one in tries:
                if one is not won:
                    self._give_back(pool, one)

    @property
    def _patience_s(self) -> float:
        """While creates queue up, a slow answer is no sign of a broken sandbox, and another try makes all of them slower."""
        return PATIENCE_S if self._under_way <= AT_ONCE else BUSY_PATIENCE_S

    def _next(self, pool: LivePool, env: dict[str, str]) -> _Try | None:
        assert pool.recipe is not None
        while (parked := pool.stock.take(pool.recipe, self._monotonic(), pool.row.max_age_s)) is not None:
            live = self._workshop.parked(parked.sandbox_id)
            if live is not None:
                epoch = new_epoch()
                return _Try(parked, live, epoch, asyncio.create_task(self._tell(live, epoch, env)))
            pool.broken += 1  # it ended, and the keeper has not seen it yet
            self._start(self._workshop.discard(parked.sandbox_id))
        return None

    async def _tell(self, live: Live, epoch: str, env: dict[str, str]) -> bool:
        try:
            await self._workshop.thaw(live)
            await bind(live, epoch, env, self._clock)
        except ClocheError as error:
            _LOG.warning("a ready sandbox is broken", extra={"sandbox_id": live.row.id, "why": error.message})
            return False
        return True

    def _commit(
        self, won: _Try, wanted: SandboxCreate, env: dict[str, str], key: IdempotencyClaim | None
    ) -> SandboxRow:
        """Its life begins now: whoever gets it gets all of it."""
        row, now = won.live.row, self._clock()
        changes: dict[str, Any] = {
            **{name: getattr(wanted, name) for name in ("name", "labels", "metadata", "lifecycle")},
            "env": env,
            "epoch": won.epoch,
            **dict.fromkeys(("created_us", "started_us", "active_us", "born_us"), now),
            "origin": row.origin.model_copy(update={"warm": True}),
            "image": wanted.image if wanted.template is None else row.image,
        }
        claimed = self._store.claim(row, key, **changes)
        won.live.row = claimed
        won.live.active_us = now
        self._workshop.handed_out(won.live)
        return claimed

    # What was not handed out

    def _give_back(self, pool: LivePool, one: _Try) -> None:
        pool.returning += 1
        self._start(self._settle(pool, one))

    async def _settle(self, pool: LivePool, one: _Try) -> None:
        """Into the stock again, as one to be looked at first; or removed."""
        sandbox_id = one.parked.sandbox_id
        try:
            if not await one.answer:
                raise _NotTold
            await unbind(one.live, self._clock)
            one.parked.suspect, one.parked.checked = True, 0.0
            await park(pool, one.parked, one.live, self._workshop)
        except (ClocheError, _NotTold):
            pool.broken += 1
            await self._workshop.discard(sandbox_id)
        finally:
            pool.returning -= 1
            pool.returned.set()
            self._wake()

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Waits for what is given back, as long as a guest may take."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10)


async def _something(tries: Iterable[_Try], pool: LivePool, wait_s: float) -> bool:
    """An answer came, or one came back into the stock. False: neither within ``wait_s``, or there is nothing to wait for."""
    waiting: set[asyncio.Future[Any]] = {one.answer for one in tries if not one.answer.done()}
    if pool.returning:
        pool.returned.clear()
        waiting.add(asyncio.ensure_future(pool.returned.wait()))
    if not waiting or wait_s <= 0:
        return False
    done, _ = await asyncio.wait(waiting, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    for future in waiting - {one.answer for one in tries}:
        future.cancel()
    return bool(done)


class _NotTold(Exception):
    """It did not answer."""
