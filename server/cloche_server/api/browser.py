"""Pages and how browsers get to see them: one-time login links, the session cookie, the built files of ``web/``."""

from __future__ import annotations

import mimetypes
import time
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlencode

from cloche.errors import NotFound, Unauthenticated
from cloche.models.browser import BrowserLogin, BrowserLoginCreate
from cloche_server.browser import SESSION, cookie_name
from cloche_server.links import LOGIN_S, SESSION_S
from cloche_server.routing import Call, Reply, UseLogin

if TYPE_CHECKING:
    from cloche_server.services import Services

PAGE_CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src 'self' data:; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Styles inline: xterm.js writes its colours and sizes as style elements. Scripts come from our files only."""

_TYPES: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


async def create_login(services: Services, call: Call) -> Reply:
    body = cast("BrowserLoginCreate", call.body)
    now = time.time()
    token = services.logins.create(call.principal.key_id, now)
    path = "/ui/login?" + urlencode({"token": token, "next": body.next})
    return Reply(BrowserLogin(path=path, expires_at=datetime.fromtimestamp(now + LOGIN_S, UTC)), status=201)


async def login(services: Services, call: Call) -> Reply:
    """The token leaves the address bar by the redirect, and works no second time."""
    query = cast("UseLogin", call.query)
    now = time.time()
    key_id = services.logins.use(query.token, now)
    if key_id is None:
        raise Unauthenticated("this link was used or is over", hint="make another: cloche shell --browser")
    cookie = services.links.sign(SESSION, {"key": key_id}, int(now) + SESSION_S)
    secure = "; Secure" if call.secure else ""
    headers = {
        "Location": query.next,
        "Set-Cookie": f"{cookie_name(call.host)}={cookie}; Path=/; Max-Age={SESSION_S}; HttpOnly; SameSite=Strict{secure}",
    }
    return Reply(b"", status=303, content_type="text/html", headers=headers)


async def terminal_page(_: Services, __: Call) -> Reply:
    """The same for everybody: what it shows it asks for, with the cookie or the link's token."""
    headers = {"Content-Security-Policy": PAGE_CSP, "Cache-Control": "no-cache"}
    return Reply(built_file("terminal.html"), content_type="text/html; charset=utf-8", headers=headers)


async def asset(_: Services, call: Call) -> Reply:
    name = call.path["asset"]
    kind = next((kind for end, kind in _TYPES.items() if name.endswith(end)), None)
    content_type = kind or mimetypes.guess_type(name)[0] or "application/octet-stream"
    headers = {"Cache-Control": "public, max-age=31536000, immutable"}  # names have a hash of the content
    return Reply(built_file(f"assets/{name}"), content_type=content_type, headers=headers)


@lru_cache(64)
def built_file(name: str) -> bytes:
    """
    Raises:
        NotFound
    """
    try:
        return (files("cloche_server") / "ui" / name).read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        raise NotFound(
            "this server has no such page", hint="a checkout builds them with: make web", details={"kind": "page"}
        ) from None
