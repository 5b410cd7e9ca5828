"""Whether somebody waits for a sandbox now. Refills yield to them, within reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

QUIET_S: Final = 0.25
"""After the last create: its first command should not share the processor with a refill."""

LONGEST_YIELD_S: Final = 3.0
"""Creates that never end would keep a pool empty for ever, and every one of them slow."""


class Foreground:
    """Creates under way, and calls that wait for a guest which hears that it was claimed."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._under_way = 0
        self._last = -QUIET_S
        self._changed = asyncio.Event()

    @contextmanager
    def create(self) -> Iterator[None]:
        """Around one of them."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._last = self._monotonic()
            self._changed.set()

    @property
    def is_quiet(self) -> bool:
        return self._left(self._monotonic()) <= 0

    async def quiet(self) -> None:
        """Returns when no create is or was under way a moment ago; after `LONGEST_YIELD_S` at the latest."""
        began = self._monotonic()
        while (left := self._left(self._monotonic())) > 0:
            over = began + LONGEST_YIELD_S - self._monotonic()
            if over <= 0:
                return
            self._changed.clear()
            try:
                async with asyncio.timeout(min(left, over)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _left(self, now: float) -> float:
        """Seconds to wait, as far as is known; 0: it is quiet."""
        if self._under_way:
            return LONGEST_YIELD_S
        return max(0.0, self._last + QUIET_S - now)
