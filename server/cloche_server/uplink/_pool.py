"""The idle connections of one sandbox.

Invariants: a connection here is open, has nothing unread, and was never another sandbox's. A connection that dies while
it is idle leaves at once. Waiters are served in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from cloche.errors import SandboxUnreachable
from cloche_server.uplink._wire import Wire

MAX_IDLE: Final = 64
"""A guest keeps 4 fresh ones ready; the rest are connections that calls gave back.

When it is full, one that was used before is closed, never a fresh one: the guest would dial again at once, for ever.
"""

TAKE_BOUND_S: Final = 10.0


class WirePool:
    """Owned by an `Uplink`."""

    def __init__(self, sandbox_id: str) -> None:
        self._sandbox_id = sandbox_id
        self._fresh: list[Wire] = []
        self._used: list[Wire] = []
        self._waiters: deque[asyncio.Future[Wire]] = deque()
        self._closed = False

    def __len__(self) -> int:
        return len(self._fresh) + len(self._used)

    def put(self, wire: Wire, *, fresh: bool = False) -> None:
        """A new connection (``fresh``), or one whose call is over and that can serve another."""
        if self._closed or wire.closed or wire.eof or wire.unread:
            wire.close()
            return
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(wire)
                return
        if len(self) >= MAX_IDLE and not (fresh and self._drop_used()):
            wire.close()
            return
        idle = self._fresh if fresh else self._used
        wire.park(idle.remove)
        idle.append(wire)

    def _drop_used(self) -> bool:
        """Makes room for a fresh one: False when there are only fresh ones."""
        if not self._used:
            return False
        wire = self._used.pop(0)
        wire.unpark()
        wire.close()
        return True

    async def take(self, bound_s: float = TAKE_BOUND_S) -> Wire:
        """The connection used last: its buffers are warm. `SandboxUnreachable` when none comes in ``bound_s``."""
        while self._used or self._fresh:
            wire = (self._used or self._fresh).pop()
            wire.unpark()
            if not (wire.closed or wire.eof or wire.unread):
                return wire
            wire.close()
        return await self._wait(bound_s)

    async def _wait(self, bound_s: float) -> Wire:
        if self._closed:
            raise self._unreachable(0)
        waiter: asyncio.Future[Wire] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(bound_s):
                return await waiter
        except TimeoutError as error:
            self._return_unclaimed(waiter)
            raise self._unreachable(bound_s) from error
        except asyncio.CancelledError:
            self._return_unclaimed(waiter)
            raise

    def _return_unclaimed(self, waiter: asyncio.Future[Wire]) -> None:
        """A connection may have been handed over in the very moment the wait ended."""
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            self.put(waiter.result())

    def close(self) -> None:
        """Everything idle is closed, everybody who waits is told. Idempotent."""
        self._closed = True
        for wire in (*self._used, *self._fresh):
            wire.unpark()
            wire.close()
        self._used.clear()
        self._fresh.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(self._unreachable(0))
        self._waiters.clear()

    def _unreachable(self, bound_s: float) -> SandboxUnreachable:
        return SandboxUnreachable(
            f"sandbox {self._sandbox_id} gave no connection within {bound_s:g} s",
            hint="its guest may be busy or starved of CPU or memory; try again, or delete the sandbox",
            details={"sandbox_id": self._sandbox_id, "bound_s": bound_s},
        )
