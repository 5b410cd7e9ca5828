"""Sandboxes of the API: a thin layer that turns calls into questions to the sandbox service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

from cloche.errors import Forbidden
from cloche.models import Page, Sandbox, SandboxCreate, SandboxUpdate
from cloche_server.auth import Principal
from cloche_server.routing import Call, ListSandboxes, Reply
from cloche_server.state import SandboxFilter

if TYPE_CHECKING:
    from cloche_server.services import Services


async def create(services: Services, call: Call) -> Reply:
    wanted = cast("SandboxCreate", call.body)
    began = time.monotonic()
    row = await services.creates.create(call.principal, wanted, call.idempotency_key)
    services.metrics.observe("claim" if row.origin.warm else "create", time.monotonic() - began)
    return Reply(row.to_model(), status=201, headers={"Location": f"/v1/sandboxes/{row.id}"})


async def list_some(services: Services, call: Call) -> Reply:
    query = cast("ListSandboxes", call.query)
    wanted = SandboxFilter(
        owner=visible_owner(call.principal, query.owner),
        state=query.state,
        name=query.name,
        labels=dict(split_label(label) for label in query.label),
    )
    items, next_page = services.sandboxes.list(wanted, query.limit, query.page)
    return Reply(Page[Sandbox](items=items, next_page=next_page))


async def get(services: Services, call: Call) -> Reply:
    return Reply(services.sandboxes.get(call.principal, call.path["sandbox_id"]).to_model())


async def get_by_name(services: Services, call: Call) -> Reply:
    return Reply(services.sandboxes.find_by_name(call.principal, call.path["name"]).to_model())


async def update(services: Services, call: Call) -> Reply:
    wanted = cast("SandboxUpdate", call.body)
    return Reply(services.sandboxes.update(call.principal, call.path["sandbox_id"], wanted).to_model())


async def delete(services: Services, call: Call) -> Reply:
    return Reply((await services.sandboxes.delete(call.principal, call.path["sandbox_id"])).to_model())


def visible_owner(principal: Principal, asked: str | None) -> str | None:
    """Whose objects a list shows; None: those of all owners."""
    if principal.sees_all:
        return asked
    if asked is not None and asked != principal.owner:
        raise Forbidden("only admins may ask for what is another owner's", details={"owner": asked})
    return principal.owner


def chosen_owner(principal: Principal, asked: str | None) -> str:
    """Whose object a name names: the caller's own, and for an admin another one's. `Forbidden`."""
    return visible_owner(principal, asked or principal.owner) or principal.owner


def split_label(label: str) -> tuple[str, str]:
    """Of a filter, ``key=value``."""
    key, _, value = label.partition("=")
    return key, value
