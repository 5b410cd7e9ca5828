"""The watch over each live sandbox: it notices when one ends by itself, and says why."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from cloche.errors import ClocheError
from cloche.models import Failure
from cloche_server.drivers import Driver
from cloche_server.lifecycle import Event
from cloche_server.sandboxes._failure import failure_of
from cloche_server.sandboxes._live import Live
from cloche_server.sandboxes._registry import Registry

_LOG: Final = logging.getLogger("cloche.sandboxes")

WRITTEN_DOWN_S: Final = 10.0
"""What a sandbox leaves is killed and counted before: milliseconds, seconds on a machine that is busy."""


class Watching:
    """Owns the watch tasks. Call `close` at the end: sandboxes go on, the watching stops."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self.deleting: set[str] = set()
        """Their ends are no surprise."""

    def hold(self, live: Live) -> None:
        """From now on calls reach it, and its end is noticed."""
        self._registry.live[live.row.id] = live
        live.active_us = live.active_us or live.row.active_us
        live.watch = asyncio.create_task(self._watch(live), name=f"watch {live.row.id}")

    def release(self, sandbox_id: str) -> None:
        """Its end is somebody else's business; calls no longer reach it."""
        live = self._registry.live.pop(sandbox_id, None)
        if live is not None and live.watch is not None:
            live.watch.cancel()

    async def settle(self, sandbox_id: str, bound_s: float) -> None:
        """Wait until the end of a sandbox is written down: ``bound_s`` for it to end, and longer once it has."""
        live = self._registry.live.get(sandbox_id)
        if live is None or live.watch is None:
            return
        await asyncio.wait([live.watch], timeout=bound_s)
        if sandbox_id in self._registry.live and not (await live.driver.inspect(sandbox_id)).is_alive:
            await asyncio.wait([live.watch], timeout=WRITTEN_DOWN_S)

    async def _watch(self, live: Live) -> None:
        sandbox_id = live.row.id
        try:
            status = await live.driver.wait_exit(sandbox_id)
        except ClocheError as error:
            _LOG.error("the watch of a sandbox failed", extra={"sandbox_id": sandbox_id}, exc_info=error)
            return
        if sandbox_id not in self.deleting:
            await self._ended(live, failure_of(status))

    async def give_up(self, live: Live, failure: Failure) -> None:
        """It is of no use to anybody: it ends, and that is why."""
        if live.watch is not None:
            live.watch.cancel()
        await self._ended(live, failure)

    async def _ended(self, live: Live, failure: Failure) -> None:
        sandbox_id = live.row.id
        await self._registry.life_ends(live.row)
        _LOG.warning("sandbox ended", extra={"sandbox_id": sandbox_id, "reason": failure.reason})
        registry = self._registry
        live.row = registry.happen(sandbox_id, Event.ENDED, ended_us=registry.clock(), failure=failure)
        registry.live.pop(sandbox_id, None)
        registry.hub.remove(sandbox_id)
        await self.destroy(live.driver, sandbox_id)

    async def destroy(self, driver: Driver, sandbox_id: str) -> bool:
        """Bounded. False, and a line in the log, when something of it may be left."""
        if (live := self._registry.live.get(sandbox_id)) is not None:
            await self._registry.life_ends(live.row)
        try:
            async with asyncio.timeout(self._registry.limits.destroy_timeout_s):
                await driver.destroy(sandbox_id)
        except Exception:
            _LOG.exception("a sandbox could not be removed", extra={"sandbox_id": sandbox_id})
            return False
        return True

    async def close(self) -> None:
        watches: Iterable[asyncio.Task[None] | None] = (live.watch for live in self._registry.live.values())
        tasks = [watch for watch in watches if watch is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._registry.live.clear()
