"""The idle connections of one sandbox, and which are out on a call.

Invariants: a connection here is open, has nothing unread, and was never another sandbox's. A connection that dies while
it is idle leaves at once. Waiters are served in order.

While it is *held* (the sandbox is being saved or is frozen) nobody gets a connection but the server itself; the others
wait as they do for a busy guest.
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


class PoolClosed(SandboxUnreachable):
    """This life of the sandbox ended while somebody waited for a connection: nothing was sent, and there may be another
    life."""


class WirePool:
    """Owned by an `Uplink`."""

    def __init__(self, sandbox_id: str) -> None:
        self._sandbox_id = sandbox_id
        self._fresh: list[Wire] = []
        self._used: list[Wire] = []
        self._out: set[Wire] = set()
        self._waiters: deque[asyncio.Future[Wire]] = deque()
        self._closed = False
        self._held = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._fresh) + len(self._used)

    def put(self, wire: Wire, *, fresh: bool = False) -> None:
        """A new connection (``fresh``), or one whose call is over and that can serve another."""
        self._take_back(wire)
        if self._closed or wire.closed or wire.eof or wire.unread:
            wire.close()
            return
        if not self._held and self._hand_over(wire):
            return
        if len(self) >= MAX_IDLE and not (fresh and self._drop_used()):
            wire.close()
            return
        idle = self._fresh if fresh else self._used
        wire.park(self._forget)
        idle.append(wire)

    def _forget(self, wire: Wire) -> None:
        (self._used if wire in self._used else self._fresh).remove(wire)
        self._changed.set()

    def _hand_over(self, wire: Wire) -> bool:
        """To whoever has waited longest; False when nobody waits."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._lend(wire)
                waiter.set_result(wire)
                return True
        return False

    def _lend(self, wire: Wire) -> None:
        self._out.add(wire)
        wire.lend(self._take_back)

    def _take_back(self, wire: Wire) -> None:
        wire.lend(None)
        wire.endless = wire.looks = False
        self._out.discard(wire)
        self._changed.set()

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
        wire = None if self._held else self._pop()
        return wire or await self._wait(bound_s)

    def _pop(self) -> Wire | None:
        while self._used or self._fresh:
            wire = (self._used or self._fresh).pop()
            wire.unpark()
            if not (wire.closed or wire.eof or wire.unread):
                self._lend(wire)
                return wire
            wire.close()
        return None

    @property
    def calls(self) -> int:
        """Calls under way that will end by themselves; streams, terminals and tunnels are none."""
        return sum(not wire.endless for wire in self._out)

    @property
    def working(self) -> int:
        """Those of `calls` that do work in the sandbox."""
        return sum(not (wire.endless or wire.looks) for wire in self._out)

    def hold(self) -> None:
        """From now on `take` waits."""
        self._held = True

    def go_on(self) -> None:
        """Undo `hold`."""
        self._held = False
        while self._waiters and (wire := self._pop()) is not None:
            if not self._hand_over(wire):
                self.put(wire)

    async def drained(self, bound_s: float) -> None:
        """Returns when no call is under way any more, at the latest after ``bound_s``."""
        try:
            async with asyncio.timeout(bound_s):
                while self.calls:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return

    async def emptied(self) -> None:
        """Returns when the other side has closed all idle connections."""
        while len(self):
            self._changed.clear()
            await self._changed.wait()

    async def take_held(self, bound_s: float = TAKE_BOUND_S) -> Wire:
        """For the server itself, while the pool is held. `SandboxUnreachable` when none comes in ``bound_s``."""
        try:
            async with asyncio.timeout(bound_s):
                while (wire := self._pop()) is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            raise self._unreachable(bound_s) from error
        return wire

    def cut(self) -> None:
        """End every connection, idle or out on a call. Waiters go on waiting."""
        self._drop_idle()
        for wire in list(self._out):
            wire.close()

    def _drop_idle(self) -> None:
        for wire in (*self._used, *self._fresh):
            wire.unpark()
            wire.close()
        self._used.clear()
        self._fresh.clear()

    async def _wait(self, bound_s: float) -> Wire:
        if self._closed:
            raise self._ended()
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
        self._drop_idle()
        self._changed.set()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(self._ended())
        self._waiters.clear()

    def _ended(self) -> PoolClosed:
        return PoolClosed(
            f"this life of sandbox {self._sandbox_id} has ended",
            hint="try again",
            details={"sandbox_id": self._sandbox_id, "bound_s": 0.0},
        )

    def _unreachable(self, bound_s: float) -> SandboxUnreachable:
        return SandboxUnreachable(
            f"sandbox {self._sandbox_id} gave no connection within {bound_s:g} s",
            hint="its guest may be busy or starved of CPU or memory; try again, or delete the sandbox",
            details={"sandbox_id": self._sandbox_id, "bound_s": bound_s},
        )
