"""Volumes of the API: a thin layer over the volume service."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cloche.models import Page, Volume, VolumeCreate
from cloche_server.api.sandboxes import split_label, visible_owner
from cloche_server.routing import Call, ListVolumes, Reply
from cloche_server.state import VolumeFilter

if TYPE_CHECKING:
    from cloche_server.services import Services


async def create(services: Services, call: Call) -> Reply:
    made = await services.volumes.create(call.principal.owner, cast("VolumeCreate", call.body))
    return Reply(made, status=201, headers={"Location": f"/v1/volumes/{made.id}"})


async def list_some(services: Services, call: Call) -> Reply:
    query = cast("ListVolumes", call.query)
    wanted = VolumeFilter(
        owner=visible_owner(call.principal, query.owner), labels=dict(split_label(label) for label in query.label)
    )
    items, next_page = services.volumes.page(wanted, query.limit, query.page)
    return Reply(Page[Volume](items=items, next_page=next_page))


async def get(services: Services, call: Call) -> Reply:
    return Reply(services.volumes.get(call.principal, call.path["volume"]))


async def delete(services: Services, call: Call) -> Reply:
    return Reply(await services.volumes.delete(call.principal, call.path["volume"]))
