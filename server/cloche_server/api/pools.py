"""Pools and intents of the API: a thin layer over the pool service."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cloche.models import IntentCreate, Page, Pool, PoolCreate
from cloche_server.api.sandboxes import chosen_owner, visible_owner
from cloche_server.routing import Call, ListPools, OfOwner, Reply

if TYPE_CHECKING:
    from cloche_server.services import Services


async def put(services: Services, call: Call) -> Reply:
    wanted = cast("PoolCreate", call.body)
    return Reply(services.pools.put(call.principal, call.path["pool_name"], wanted))


async def list_all(services: Services, call: Call) -> Reply:
    owner = visible_owner(call.principal, cast("ListPools", call.query).owner)
    return Reply(Page[Pool](items=services.pools.list(owner)))


async def get(services: Services, call: Call) -> Reply:
    return Reply(services.pools.get(_owner(call), call.path["pool_name"]))


async def delete(services: Services, call: Call) -> Reply:
    return Reply(await services.pools.delete(_owner(call), call.path["pool_name"]))


async def intend(services: Services, call: Call) -> Reply:
    wanted = cast("IntentCreate", call.body)
    return Reply(services.pools.intend(call.principal.owner, wanted), status=202)


def _owner(call: Call) -> str:
    return chosen_owner(call.principal, cast("OfOwner", call.query).owner)
