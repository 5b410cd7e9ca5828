"""The watch over one sandbox: its first process, and the helper of its runtime without which it is only half alive.

gVisor's file proxy (the gofer) opens the files and sockets of the host for the sandbox. Killed, it takes a sandbox that was
started cold with it, which then says "exit 137"; one that came out of a checkpoint goes on with what it has open, and can
open nothing of the host any more. Both are an end of the sandbox, with the helper as the reason.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import FIRST_COMPLETED
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cloche_server.drivers._exit_watch import ExitWatch

ORDERLY_BOUND_S: Final = 2.0
"""A sandbox that ends in order lets go of its helper, which then exits with 0 and may be seen to end first. Measured: within
2 ms of one another, on a busy machine."""


@dataclass(frozen=True, slots=True)
class End:
    """What ended the sandbox: ``wait_status`` as `os.wait` gives it, None when it is not known, of its first process or of
    its helper."""

    wait_status: int | None
    of_helper: bool = False


def hold(pid: int) -> ExitWatch | None:
    """None when there is no such process. Only then ask whose it is: its number may have been given to another before."""
    with suppress(ProcessLookupError):
        return ExitWatch(pid)
    return None


class SandboxWatch:
    """Owns its watches. ``helper`` is None for a helper that was not there any more when it was looked for."""

    def __init__(self, first: ExitWatch, helper: ExitWatch | None, *, needs_helper: bool) -> None:
        self._first = first
        self._helper = helper
        self._helper_is_missing = needs_helper and helper is None
        self._all = [watch for watch in (first, helper) if watch is not None]

    def close(self) -> None:
        for watch in self._all:
            watch.close()

    def has_ended(self) -> bool:
        return self._helper_is_missing or any(watch.has_ended() for watch in self._all)

    async def ended(self) -> None:
        """Returns when one of both has ended. Any number of tasks may wait."""
        if self.has_ended():
            return
        waiting = [asyncio.ensure_future(watch.ended()) for watch in self._all]
        try:
            await asyncio.wait(waiting, return_when=FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def end(self) -> End:
        """Once one of both has ended: which, and how. The first process may still be there when it was the helper."""
        if self._helper_is_missing:
            return await self._unless_in_order(End(None, of_helper=True))
        if self._helper is None or not self._helper.has_ended():
            return End(await self._first.wait_status())
        status = await self._helper.wait_status()
        if status is not None and os.WIFSIGNALED(status) and not await self._first_was_killed():
            return End(status, of_helper=True)
        return await self._unless_in_order(End(status, of_helper=True))

    async def _first_was_killed(self) -> bool:
        """It only exits when it has lost its helper."""
        if not self._first.has_ended():
            return False
        status = await self._first.wait_status()
        return status is not None and os.WIFSIGNALED(status)

    async def _unless_in_order(self, end: End) -> End:
        with suppress(TimeoutError):
            async with asyncio.timeout(ORDERLY_BOUND_S):
                await self._first.ended()
        # Looked at once more: the time may be over because this process stood still.
        return End(await self._first.wait_status()) if self._first.has_ended() else end
