"""A claimed sandbox' guest is told who it is: by the first call that needs it, or by whoever has time before.

A claim changes the row alone: its guest, which most often stands still, goes by what it was told in the pool, and
the row remembers that (``known_as``) until the guest has said yes. Nothing of its owner's reaches the guest before:
every way into a sandbox goes through `bound`, and so does every change of its life that looks at its memory.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from cloche.errors import ClocheError, SandboxUnreachable
from cloche.models import Failure, SandboxState
from cloche.models.guest import Identity, RebirthReason
from cloche_server.clock import to_datetime
from cloche_server.relay import GuestCall, call_guest
from cloche_server.sandboxes._changes import retrieve
from cloche_server.sandboxes._failure import not_running
from cloche_server.sandboxes._live import Live
from cloche_server.sandboxes._registry import Registry, gone
from cloche_server.sandboxes._watching import Watching
from cloche_server.state import SandboxRow

_LOG: Final = logging.getLogger("cloche.sandboxes")

AT_ONCE: Final = 4
"""Guests that are told. Each takes 10 ms of processor time (gVisor): a hundred at once would make all of them slow."""

BOUND_S: Final = 5.0
"""For the answer of one guest, on a busy machine too. Measured: 2 ms on a quiet one with two cores, 5 ms on gVisor."""

ENDING_S: Final = 1.0
"""A sandbox that was killed while it stood still dies when it goes on, and the watch hears of it a moment later."""

AGAIN_S: Final = 30.0
"""Nobody is told unasked for so long after it did not answer."""


class Binding:
    """Owns the tellings under way; many callers share one."""

    def __init__(self, registry: Registry, watching: Watching) -> None:
        self._registry = registry
        self._watching = watching
        self._room = asyncio.Semaphore(AT_ONCE)
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        self.foreground: Callable[[], AbstractContextManager[None]] = nullcontext
        """Around every wait of a call: what has time waits, too."""

    async def bound(self, live: Live) -> None:
        """Returns at once when its guest goes by what the row says; else tells it.

        Raises:
            SandboxNotRunning: it has ended, as is found out only now if it stood still.
            SandboxUnreachable: it does not answer. The next call tells it again.
            Gone: it was deleted meanwhile.
        """
        if live.row.known_as is not None:
            with self.foreground():
                await asyncio.shield(self.begin(live))

    def begin(self, live: Live) -> asyncio.Task[None]:
        """Tells it, or goes on doing so. The task is kept here; an error in it is for whoever waits."""
        task = self._under_way.get(live.row.id)
        if task is None:
            task = self._under_way[live.row.id] = asyncio.create_task(self._bind(live), name=f"bind {live.row.id}")
            task.add_done_callback(lambda _: self._under_way.pop(live.row.id, None) and None)
            task.add_done_callback(retrieve)
        return task

    def begin_at_once(self, live: Live) -> None:
        """While its owner reads the answer to his create; not if others are told."""
        if not self._under_way:
            self.begin(live)

    async def tell_again(self, live: Live) -> None:
        """What its guest knows, by the way it is told when it is claimed: a rehearsal. Raises what `call_guest` does."""
        await _tell(live, _identity(live.row, self._registry.clock(), reason=None))

    def next_unbound(self) -> Live | None:
        """One to be told while there is time: not under way, and not one that did not answer a moment ago."""
        if self._under_way:
            return None
        now = time.monotonic()
        unbound = (live for live in self._registry.live.values() if live.row.known_as is not None)
        return next((live for live in unbound if self._not_before.get(live.row.id, 0.0) <= now), None)

    async def _bind(self, live: Live) -> None:
        row = live.row
        try:
            async with self._room:
                if "pause" in live.driver.capabilities:
                    await live.driver.resume(row.id)
                await _tell(live, _identity(row, self._registry.clock()))
        except ClocheError as error:
            self._not_before[row.id] = time.monotonic() + AGAIN_S
            raise await self._what_happened(live, error) from error
        live.uplink.settle()
        self._registry.bound(live)
        self._not_before.pop(row.id, None)

    async def _what_happened(self, live: Live, error: ClocheError) -> ClocheError:
        if live.row.id in self._watching.deleting:  # its owner ends it; that is no failure of it
            return gone(live.row.id)
        await self._watching.settle(live.row.id, ENDING_S)
        row = self._registry.known(live.row.id)
        if row.state is not SandboxState.RUNNING:
            return not_running(row)
        if isinstance(error, SandboxUnreachable):
            _LOG.info("a claimed sandbox did not hear of it", extra={"sandbox_id": row.id, "why": error.message})
            return SandboxUnreachable(
                f"sandbox {row.id} came out of a pool, and its guest did not hear of it: {error.message}",
                hint="send the call again: nothing was done in the sandbox. Or delete it and create another one",
                details=error.details,
            )
        why = f"it came out of a pool, and its guest refused to be this sandbox: {error.message}"
        await self._watching.give_up(live, Failure(reason="start_failed", message=why))
        return not_running(self._registry.known(row.id))

    async def close(self, bound_s: float) -> None:
        """Waits for what is under way."""
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()), timeout=bound_s)


async def _tell(live: Live, identity: Identity) -> None:
    """Twice, when a connection that was idle turns out to be closed: to say it again changes nothing."""
    call = GuestCall("POST", "/v1/identity", {204}, BOUND_S, identity.model_dump_json().encode())
    try:
        await _ask(live, call)
    except SandboxUnreachable as error:
        if not error.details.get("cut"):
            raise
        await _ask(live, call)


async def _ask(live: Live, call: GuestCall) -> None:
    (await call_guest(live.uplink.pool, call, 1024)).close()


def _identity(row: SandboxRow, now_us: int, reason: RebirthReason | None = "claim") -> Identity:
    return Identity(
        sandbox_id=row.id,
        epoch=row.epoch,
        env=row.env,
        sudo=row.sudo,
        now=to_datetime(now_us),
        seed=secrets.token_hex(32),
        reason=reason,
    )
