"""The calls under way, so that a shutdown can end streams with a reason and wait for the rest."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Stoppable(Protocol):
    """A call. ``is_stream``: it would go on for ever."""

    @property
    def is_stream(self) -> bool: ...

    def stop(self) -> None:
        """Tell the client why, and end. Called once, by the shutdown."""


class OpenCalls:
    """A set with an end: after `close` newcomers are still counted, and told at once."""

    def __init__(self) -> None:
        self._calls: set[Stoppable] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self.closing = False

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Stoppable) -> None:
        self._calls.add(call)
        self._empty.clear()

    def discard(self, call: Stoppable) -> None:
        self._calls.discard(call)
        if not self._calls:
            self._empty.set()

    async def close(self, grace_s: float) -> None:
        """Streams end now; the others have ``grace_s`` seconds to end by themselves."""
        self.closing = True
        for call in [call for call in self._calls if call.is_stream]:
            call.stop()
        await self._drained(grace_s)
        for call in list(self._calls):
            call.stop()
        await self._drained(1)

    async def _drained(self, bound_s: float) -> None:
        try:
            async with asyncio.timeout(bound_s):
                await self._empty.wait()
        except TimeoutError:
            pass
