"""What sandboxes cost, and what Prometheus is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cloche.models import Page, Usage
from cloche_server.api.sandboxes import visible_owner
from cloche_server.metrics import CONTENT_TYPE
from cloche_server.routing import Call, ListUsage, Reply
from cloche_server.state import PageToken, SandboxFilter

if TYPE_CHECKING:
    from cloche_server.services import Services


async def of_sandbox(services: Services, call: Call) -> Reply:
    row = services.sandboxes.get(call.principal, call.path["sandbox_id"])
    return Reply(await services.usage.of(row))


async def list_some(services: Services, call: Call) -> Reply:
    query = cast("ListUsage", call.query)
    wanted = SandboxFilter(owner=visible_owner(call.principal, query.owner), state=query.state)
    after = None if query.page is None else PageToken.decode(query.page)
    rows, next_page = services.sandboxes.store.list(wanted, query.limit, after)
    return Reply(Page[Usage](items=await services.usage.of_many(rows), next_page=next_page))


async def metrics(services: Services, _: Call) -> Reply:
    return Reply(services.metrics.text(), content_type=CONTENT_TYPE)
