"""After a start of the server: what the rows say against what is there. What follows from it is decided in
`cloche_server.lifecycle.resolution`:

| row | the driver has it alive | not alive |
|---|---|---|
| running, paused | adopt: listen again, watch; paused ones stay frozen, running ones run | failed, with the driver's reason |
| suspending, stopping | it was not saved: running | saved: suspended, stopped; not even that: failed |
| suspended, stopped | removed; as it was | as it was, if what was saved is there; else failed |
| resuming, restoring | its guest said hello: running; else removed, suspended or stopped | suspended or stopped |
| creating | removed, failed | failed |
| failed, deleted, no row | removed | - |

What is left over of any other sandbox (processes, sockets, saved memory) is removed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from cloche.errors import SandboxNotRunning
from cloche.models import Failure, SandboxState
from cloche_server.drivers import Driver, ExitReason, RunState, SandboxStatus
from cloche_server.ids import new_epoch
from cloche_server.lifecycle import Event, Found, resolve
from cloche_server.sandboxes._failure import failure_of
from cloche_server.sandboxes._saved import SavedIdentity
from cloche_server.sandboxes._service import SandboxService
from cloche_server.state import SandboxRow

_LOG: Final = logging.getLogger("cloche.recovery")

_S = SandboxState

_NOT_THERE: Final = SandboxStatus(RunState.UNKNOWN, ExitReason.LOST)
_HALF_MADE: Final = Failure(reason="start_failed", message="the server was stopped while this sandbox was starting")


@dataclass(slots=True)
class Recovered:
    """What was found, by id. ``resting``: suspended or stopped."""

    adopted: list[str] = field(default_factory=list)
    resting: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


async def recover(service: SandboxService) -> Recovered:
    """Before the first request is served."""
    done = Recovered()
    for row in service.store.with_state(*(set(_S) - {_S.FAILED, _S.DELETED})):
        await _recover_one(service, row, done)
    for driver in service.drivers.all():
        for sandbox_id in await driver.list():
            if sandbox_id not in done.adopted:
                await _remove(driver, sandbox_id, done)
    for sandbox_id in service.hub.on_disk():
        if sandbox_id not in done.adopted:
            service.hub.remove(sandbox_id)
    for sandbox_id in service.saved.on_disk():
        if sandbox_id not in done.resting:
            await asyncio.to_thread(service.saved.remove, sandbox_id)
    return done


async def _recover_one(service: SandboxService, row: SandboxRow, done: Recovered) -> None:
    driver = service.drivers.get(row.driver)
    status = _NOT_THERE if driver is None else await driver.inspect(row.id)
    event = resolve(row.state, _found(service, row, status))
    if event is Event.START_FAILED:
        await service.forget_start(row, _HALF_MADE)
    elif event is Event.ENDED:
        service.fail(row, event, _why(row, driver, status))
    elif event is not None:
        row = service.registry.happen(row.id, event, **_changes(row, event))
    if event in (Event.START_FAILED, Event.ENDED):
        done.failed.append(row.id)
    elif row.state in (_S.RUNNING, _S.PAUSED):
        assert driver is not None, "it was found alive"
        await _adopt(service, row, driver, done)
    else:
        done.resting.append(row.id)


def _found(service: SandboxService, row: SandboxRow, status: SandboxStatus) -> Found:
    identity = SavedIdentity.from_json(row.previous)
    return Found(
        alive=status.is_alive,
        saved=service.saved.exists(row.id),
        memory=(row.previous or {}).get("state", _S.SUSPENDED.value) == _S.SUSPENDED.value,
        # The first hello of a new life replaces what its guest was expected with.
        greeted=identity is not None and row.token_hash != identity.session_hash,
    )


def _changes(row: SandboxRow, event: Event) -> dict[str, object]:
    """What the server that died would have written."""
    if event is Event.STARTED:
        return {"previous": None, "saved_us": None}
    if event is not Event.SAVED:
        return {}
    state = _S.STOPPED if row.state is _S.STOPPING else _S.SUSPENDED
    identity = {}
    if "memory_snapshot" in row.capabilities:
        identity = SavedIdentity(row.id, row.epoch, row.token_hash).to_json()
    epoch = new_epoch() if state is _S.STOPPED else row.epoch
    return {"previous": {**identity, "state": state.value}, "saved_us": row.active_us, "epoch": epoch}


async def _adopt(service: SandboxService, row: SandboxRow, driver: Driver, done: Recovered) -> None:
    """Frozen or not as the row says: the server may have died between the two. If it ends just now, the watch says so.

    What is parked in a pool, or was claimed and not used yet, stands still or not as it did: see `cloche_server.pools`.
    """
    if row.pool is None and row.known_as is None:
        with suppress(SandboxNotRunning):
            await (driver.pause(row.id) if row.state is _S.PAUSED else driver.resume(row.id))
    await service.adopt(row, driver)
    done.adopted.append(row.id)


def _why(row: SandboxRow, driver: Driver | None, status: SandboxStatus) -> Failure:
    if driver is None:
        return Failure(reason="lost", message=f"this server has no driver {row.driver} any more")
    if row.state in (_S.SUSPENDED, _S.STOPPED):
        return Failure(reason="lost", message=f"what was saved of this {row.state.value} sandbox is gone")
    return failure_of(status)


async def _remove(driver: Driver, sandbox_id: str, done: Recovered) -> None:
    try:
        await driver.destroy(sandbox_id)
    except Exception:
        _LOG.exception("something of an unknown sandbox could not be removed", extra={"sandbox_id": sandbox_id})
    else:
        done.removed.append(sandbox_id)
