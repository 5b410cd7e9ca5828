"""Templates of the API: a thin layer over the template service."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, cast

from cloche.models import Page, Template, TemplateCreate, TemplateLog
from cloche.models.runs import MAX_WAIT_S
from cloche_server.api.sandboxes import chosen_owner, visible_owner
from cloche_server.routing import BuildFromCursor, BuildWait, Call, ListTemplates, OfOwner, Reply, WaitForBuild

if TYPE_CHECKING:
    from cloche_server.services import Services
    from cloche_server.state import TemplateRow


async def create(services: Services, call: Call) -> Reply:
    wanted, query = cast("TemplateCreate", call.body), cast("BuildWait", call.query)
    row = await services.templates.create(call.principal.owner, wanted, MAX_WAIT_S if query.wait else 0.0)
    return _reply(row, HTTPStatus.CREATED)


async def list_some(services: Services, call: Call) -> Reply:
    query = cast("ListTemplates", call.query)
    owner = visible_owner(call.principal, query.owner)
    rows, next_page = services.templates.list(owner, query.limit, query.page, query.name)
    return Reply(Page[Template](items=[row.to_model() for row in rows], next_page=next_page))


async def get(services: Services, call: Call) -> Reply:
    query = cast("WaitForBuild", call.query)
    row = await services.templates.wait(_owner(call), call.path["template_ref"], query.wait_s)
    return _reply(row, HTTPStatus.OK)


async def log(services: Services, call: Call) -> Reply:
    text, truncated = services.templates.log(_owner(call), call.path["template_ref"])
    return Reply(TemplateLog(text=text, truncated=truncated))


async def follow(services: Services, call: Call) -> Reply:
    cursor = call.last_event_id or cast("BuildFromCursor", call.query).cursor
    events = services.templates.follow(_owner(call), call.path["template_ref"], cursor)
    return Reply(events, content_type="text/event-stream")


async def delete(services: Services, call: Call) -> Reply:
    return Reply((await services.templates.delete(_owner(call), call.path["template_ref"])).to_model())


def _owner(call: Call) -> str:
    return chosen_owner(call.principal, cast("OfOwner", call.query).owner)


def _reply(row: TemplateRow, done: HTTPStatus) -> Reply:
    return Reply(row.to_model(), status=HTTPStatus.ACCEPTED if row.state == "building" else done)
