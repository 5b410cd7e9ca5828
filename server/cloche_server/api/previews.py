"""Previews of the API: a thin layer over the preview service."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cloche.models import Page, Preview, PreviewCreate, PreviewTokenCreate
from cloche_server.routing import Call, Reply

if TYPE_CHECKING:
    from cloche_server.services import Services


async def put(services: Services, call: Call) -> Reply:
    wanted = cast("PreviewCreate", call.body)
    return Reply(services.previews.put(call.principal, *_where(call), wanted))


async def list_all(services: Services, call: Call) -> Reply:
    return Reply(Page[Preview](items=services.previews.list(call.principal, call.path["sandbox_id"])))


async def get(services: Services, call: Call) -> Reply:
    return Reply(services.previews.get(call.principal, *_where(call)))


async def delete(services: Services, call: Call) -> Reply:
    return Reply(services.previews.delete(call.principal, *_where(call)))


async def sign(services: Services, call: Call) -> Reply:
    wanted = cast("PreviewTokenCreate", call.body)
    return Reply(services.previews.sign(call.principal, *_where(call), wanted))


async def revoke(services: Services, call: Call) -> Reply:
    return Reply(services.previews.revoke(call.principal, *_where(call)))


def _where(call: Call) -> tuple[str, int]:
    return call.path["sandbox_id"], int(call.path["port"])
