"""Saving a live sandbox: its guest lets go of the host, the driver writes, and it goes on or is gone.

Open connections to the host cannot be saved. So, for the moment of it:

1. The pool of connections is held: new calls wait, those under way have `GRACE_S` to end.
2. The server stops listening; the guest is asked to close every uplink, and the server closes its ends, too. Streams are
   cut as by a restart of the server, and go on by their cursors.
3. The driver saves.
4. The server listens again, the guest dials, the calls that waited go on.

A guest that was saved runs on in the same life, with the same session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloche.errors import ClocheError, InternalError, SandboxUnreachable, SnapshotFailed
from cloche.models import SandboxState
from cloche.models.guest import UplinksClose
from cloche_server.drivers import Checkpoint
from cloche_server.relay import GuestCall, call_guest
from cloche_server.sandboxes._live import Live
from cloche_server.sandboxes._registry import Registry
from cloche_server.sandboxes._saved import Saved, SavedIdentity
from cloche_server.sandboxes._start import END_ALL
from cloche_server.sandboxes._watching import Watching
from cloche_server.uplink import Uplink

_LOG: Final = logging.getLogger("cloche.sandboxes")

GRACE_S: Final = 1.0
"""For plain calls under way; they are cut then, and may be repeated. A stream is cut at once."""

GUEST_BOUND_S: Final = 10.0
"""For one answer of the guest, and for it to dial again: it tries every 5 ms."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Who wants to be told of a save while it goes on: ``begins`` with whom its guest will believe to be, and ``written``
    when the files are whole; the sandbox goes on after that."""

    begins: Callable[[SavedIdentity], None]
    written: Callable[[], None]


class Saving:
    """See the module's words."""

    def __init__(self, registry: Registry, watching: Watching) -> None:
        self._registry = registry
        self._watching = watching

    async def save(
        self,
        live: Live,
        directory: Path,
        *,
        keep_running: bool,
        end_all: bool,
        reason: str,
        steps: Steps | None = None,
    ) -> Saved:
        """``directory`` is written by the driver and must not exist.

        With ``keep_running`` false afterwards nothing of the sandbox is left but the directory, and it is not live any
        more; on any failure it is as it was. The row is not touched: the caller says what has happened.
        """
        identity = SavedIdentity(live.row.id, live.row.epoch, live.uplink.session_hash)
        if steps is not None:
            steps.begins(identity)
        try:
            await quieten(live.uplink)
            if end_all:
                await tell_guest(live.uplink, END_ALL)
            await let_go(live.uplink, reason)
            if live.row.state is SandboxState.PAUSED:  # from here on it runs only when the driver cannot do without
                await live.driver.pause(live.row.id)
            saved = await self._checkpoint(live, directory, keep_running=keep_running)
            if steps is not None:
                steps.written()
        except BaseException:
            await self._carry_on(live)
            raise
        if keep_running:
            await self._carry_on(live)
        else:
            self._registry.hub.remove(live.row.id)
        return Saved(saved, identity if saved.memory else None)

    async def _checkpoint(self, live: Live, directory: Path, *, keep_running: bool) -> Checkpoint:
        if not keep_running:
            await self._registry.life_ends(live.row)
            self._watching.release(live.row.id)
        try:
            return await live.driver.checkpoint(live.row.id, directory, keep_running=keep_running)
        except BaseException as error:
            if not keep_running:
                self._watching.hold(live)
            if isinstance(error, ClocheError) and not isinstance(error, InternalError):
                raise
            if not isinstance(error, Exception):
                raise
            raise _not_saved(live, error) from error

    async def _carry_on(self, live: Live) -> None:
        """A guest that does not come back is found out by the next call; what was saved is good all the same. For a sandbox
        that has ended nothing is made again: nobody would remove it."""
        uplink = live.uplink
        if self._registry.live.get(live.row.id) is not live:
            return
        try:
            await uplink.listen_again()
            if live.row.state is SandboxState.PAUSED:  # it dials when it goes on
                return
            async with asyncio.timeout(GUEST_BOUND_S):
                await uplink.greeted.wait()
        except (TimeoutError, OSError) as error:
            _LOG.error("a guest did not dial again", extra={"sandbox_id": live.row.id}, exc_info=error)
        finally:
            uplink.pool.go_on()


async def quieten(uplink: Uplink) -> None:
    """No new call reaches the guest, and those under way have had their time."""
    uplink.pool.hold()
    await uplink.pool.drained(GRACE_S)


async def let_go(uplink: Uplink, reason: str) -> None:
    """Of a guest that was quietened: no connection between it and this server is left, and none can be made.
    `SandboxUnreachable` when it does not answer."""
    pool = uplink.pool
    wire = await pool.take_held(GUEST_BOUND_S)
    uplink.stop_listening()
    body = UplinksClose(reason=reason).model_dump_json().encode()
    call = GuestCall("POST", "/v1/uplinks/close", statuses={204}, bound_s=GUEST_BOUND_S, body=body)
    (await call_guest(pool, call, 1024, wire)).close()
    await _closed_by_guest(uplink)
    pool.cut()


async def _closed_by_guest(uplink: Uplink) -> None:
    """The guest closes all at once, right behind its answer. Only the idle ones are looked at: one whose stream nobody reads
    does not hear of its end."""
    try:
        async with asyncio.timeout(GUEST_BOUND_S):
            await uplink.pool.emptied()
    except TimeoutError:
        raise SandboxUnreachable(
            f"the guest did not let go of its connections within {GUEST_BOUND_S:g} s",
            hint="try again",
            details={"bound_s": GUEST_BOUND_S},
        ) from None


async def tell_guest(uplink: Uplink, call: GuestCall) -> None:
    """To a guest that was quietened, a call whose answer says nothing but that it is done. Raises what `call_guest` does."""
    wire = await uplink.pool.take_held(GUEST_BOUND_S)
    (await call_guest(uplink.pool, call, 65_536, wire)).close()


def _not_saved(live: Live, error: Exception) -> SnapshotFailed:
    _LOG.warning("a sandbox could not be saved", extra={"sandbox_id": live.row.id}, exc_info=error)
    what = error.message if isinstance(error, ClocheError) else str(error)
    output = error.details.get("output", what) if isinstance(error, ClocheError) else what
    return SnapshotFailed(
        f"sandbox {live.row.id} could not be saved, and goes on as it was: {what}",
        hint="try again; the server's log says more",
        details={"driver": live.row.driver, "output": output},
    )
