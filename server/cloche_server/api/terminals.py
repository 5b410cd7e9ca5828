"""What the server itself answers about terminals: links to watch one. Everything else is the guest's."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cloche.models import Page
from cloche.models.terminals import TerminalShareCreate, TerminalShareInfo
from cloche_server.routing import Call, Reply

if TYPE_CHECKING:
    from cloche_server.services import Services


async def share(services: Services, call: Call) -> Reply:
    wanted = cast("TerminalShareCreate", call.body)
    return Reply(services.shares.create(call.principal, *_where(call), wanted), status=201)


async def list_shares(services: Services, call: Call) -> Reply:
    return Reply(Page[TerminalShareInfo](items=services.shares.list(call.principal, *_where(call))))


async def revoke_share(services: Services, call: Call) -> Reply:
    return Reply(services.shares.revoke(call.principal, *_where(call), call.path["share_id"]))


def _where(call: Call) -> tuple[str, str]:
    return call.path["sandbox_id"], call.path["terminal_id"]
