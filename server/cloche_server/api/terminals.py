"""What the server itself answers about terminals: links to watch one. Everything else is the guest's."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cloche.models.terminals import TerminalShare, TerminalShareCreate
from cloche_server.browser import SHARE
from cloche_server.routing import Call, Reply

if TYPE_CHECKING:
    from cloche_server.services import Services


async def share(services: Services, call: Call) -> Reply:
    """The terminal need not exist: a link to nothing shows nothing."""
    assert isinstance(call.body, TerminalShareCreate)
    sandbox_id, terminal_id = call.path["sandbox_id"], call.path["terminal_id"]
    sandbox = services.sandboxes.get(call.principal, sandbox_id)
    expires_at = int(time.time()) + call.body.ttl_s
    fields = {"sandbox": sandbox_id, "terminal": terminal_id, "owner": sandbox.owner}
    token = services.links.sign(SHARE, fields, expires_at)
    path = f"/ui/terminal?sandbox={sandbox_id}&terminal={terminal_id}#share={token}"
    return Reply(TerminalShare(token=token, path=path, expires_at=datetime.fromtimestamp(expires_at, UTC)), status=201)
