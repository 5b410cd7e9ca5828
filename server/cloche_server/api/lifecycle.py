"""Pause, suspend, stop and resume of the API. Asking for what is the case already answers at once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cloche.models import StateChange
from cloche_server.routing import Call, Reply
from cloche_server.state import SandboxRow

if TYPE_CHECKING:
    from cloche_server.services import Services


async def pause(services: Services, call: Call) -> Reply:
    began = time.monotonic()
    return _reply(await services.sandboxes.pause(_id(services, call)), began)


async def suspend(services: Services, call: Call) -> Reply:
    began = time.monotonic()
    row, paused_s = await services.sandboxes.suspend(_id(services, call))
    return _reply(row, began, paused_s)


async def stop(services: Services, call: Call) -> Reply:
    began = time.monotonic()
    row, paused_s = await services.sandboxes.stop(_id(services, call))
    return _reply(row, began, paused_s)


async def resume(services: Services, call: Call) -> Reply:
    began = time.monotonic()
    return _reply(await services.sandboxes.resume(_id(services, call)), began)


def _id(services: Services, call: Call) -> str:
    return services.sandboxes.get(call.principal, call.path["sandbox_id"]).id


def _reply(row: SandboxRow, began: float, paused_s: float | None = None) -> Reply:
    took_s = time.monotonic() - began
    return Reply(StateChange(sandbox_id=row.id, state=row.state, epoch=row.epoch, duration_s=took_s, paused_s=paused_s))
