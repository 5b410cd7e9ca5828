"""What only the server knows of a sandbox' life, told to its guest, which keeps the journal of the sandbox.

A guest that cannot be told changes nothing: the journal is for people, and the row is what counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from cloche.errors import ClocheError
from cloche.models import SandboxState
from cloche.models.guest import Told
from cloche_server.relay import GuestCall, call_guest
from cloche_server.sandboxes._live import Live

_LOG: Final = logging.getLogger("cloche.sandboxes")

TOLD_WITHIN_S: Final = 2.0
"""More than a busy guest needs; a pause or a failed suspend must not wait longer for one that hangs."""


async def tell_state(
    live: Live, state: SandboxState, reason: str, failure: BaseException | None = None, *, held: bool = False
) -> None:
    """``state``: what it is now, or is about to be. ``failure``: why it is not what it was to become. ``held``: new calls
    are kept out of the guest at this moment."""
    await _tell(live, "sandbox_state", {"state": state.value, "reason": reason, "failure": failure_of(failure)}, held)


async def tell_policy_failed(live: Live, action: str, why: str, failure: Exception, again_in_s: float) -> None:
    """A policy could not be kept, and will be tried again."""
    data = {"action": action, "why": why, "failure": failure_of(failure), "again_in_s": again_in_s}
    await _tell(live, "policy_failed", data, held=False)


def failure_of(error: BaseException | None) -> JsonValue:
    """``code`` and ``message``; a defect of the server keeps its words to the log."""
    if error is None:
        return None
    if isinstance(error, ClocheError):
        return {"code": error.code, "message": error.message}
    return {"code": "internal", "message": "a defect in Cloche; the server's log says more"}


async def _tell(live: Live, kind: str, data: Mapping[str, JsonValue], held: bool) -> None:
    body = Told.model_validate({"type": kind, "data": data}).model_dump_json().encode()
    call = GuestCall("POST", "/v1/events", statuses={204}, bound_s=TOLD_WITHIN_S, body=body, looks=True)
    pool = live.uplink.pool
    try:
        async with asyncio.timeout(TOLD_WITHIN_S):
            wire = await pool.take_held(TOLD_WITHIN_S) if held else None
            (await call_guest(pool, call, 1024, wire)).close()
    except (ClocheError, TimeoutError) as error:
        _LOG.info("the journal of a sandbox misses an event", extra={"sandbox_id": live.row.id, "why": repr(error)})
