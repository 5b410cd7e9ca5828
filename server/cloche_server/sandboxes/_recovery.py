"""After a start of the server: what the rows say against what the drivers have.

| row | driver has it running | driver has something | driver has nothing |
|---|---|---|---|
| running | adopt: listen again, watch | failed, with the driver's reason; removed | failed (lost) |
| creating | removed, failed | removed, failed | failed |
| failed, deleted | removed | removed | - |
| no row | removed | removed | - |
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final

from cloche.models import Failure, SandboxState
from cloche_server.drivers import Driver, RunState
from cloche_server.sandboxes._failure import failure_of
from cloche_server.sandboxes._service import SandboxService
from cloche_server.state import SandboxRow

_LOG: Final = logging.getLogger("cloche.recovery")


@dataclass(slots=True)
class Recovered:
    """What was found, by id."""

    adopted: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)


async def recover(service: SandboxService) -> Recovered:
    """Before the first request is served."""
    done = Recovered()
    for row in service.store.with_state(SandboxState.CREATING):
        failure = Failure(reason="start_failed", message="the server was stopped while this sandbox was starting")
        await service.forget_start(row, failure)
        done.failed.append(row.id)
    for row in service.store.with_state(SandboxState.RUNNING):
        await _recover_running(service, row, done)
    for driver in service.drivers.all():
        for sandbox_id in await driver.list():
            if sandbox_id not in done.adopted:
                await _remove(driver, sandbox_id, done)
    for sandbox_id in service.hub.on_disk():
        if sandbox_id not in done.adopted:
            service.hub.remove(sandbox_id)
    return done


async def _recover_running(service: SandboxService, row: SandboxRow, done: Recovered) -> None:
    driver = service.drivers.get(row.driver)
    if driver is None:
        failure = Failure(reason="lost", message=f"this server has no driver {row.driver} any more")
    else:
        status = await driver.inspect(row.id)
        if status.state is RunState.RUNNING:
            await service.adopt(row, driver)
            done.adopted.append(row.id)
            return
        failure = failure_of(status)
    service.fail(row, failure)
    done.failed.append(row.id)


async def _remove(driver: Driver, sandbox_id: str, done: Recovered) -> None:
    try:
        await driver.destroy(sandbox_id)
    except Exception:
        _LOG.exception("something of an unknown sandbox could not be removed", extra={"sandbox_id": sandbox_id})
    else:
        done.removed.append(sandbox_id)
