"""Keys of the API: made, listed, revoked. Admins only (the routes say so)."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cloche.errors import Conflict
from cloche.models import Key, KeyCreate, NewKey, Page
from cloche_server.auth import new_secret
from cloche_server.routing import Call, ListKeys, Reply

if TYPE_CHECKING:
    from cloche_server.services import Services


async def create(services: Services, call: Call) -> Reply:
    secret = new_secret()
    key = services.keys.create(cast("KeyCreate", call.body), secret)
    return Reply(NewKey(**key.model_dump(), secret=secret), status=201)


async def list_all(services: Services, call: Call) -> Reply:
    query = cast("ListKeys", call.query)
    page: Page[Key] = services.keys.list(query.limit, query.page)
    return Reply(page)


async def revoke(services: Services, call: Call) -> Reply:
    """Revoking the key one is using would lock an only admin out: `Conflict`."""
    key_id = call.path["key_id"]
    if key_id == call.principal.key_id:
        raise Conflict(
            "this is the key you are using",
            hint="revoke it with another admin key",
            details={"kind": "key", "id": key_id},
        )
    return Reply(services.keys.revoke(key_id))
