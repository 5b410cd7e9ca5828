"""The routes of terminals and of the pages that show them: part of the one table in `cloche_server.routes`."""

from __future__ import annotations

from typing import Final

from cloche.errors import LimitReached, NotFound, Unauthenticated
from cloche.models import Page, Role
from cloche.models.browser import BrowserLogin, BrowserLoginCreate
from cloche.models.terminals import (
    Terminal,
    TerminalCreate,
    TerminalShare,
    TerminalShareCreate,
    TerminalShareInfo,
    TerminalSize,
)
from cloche_server.api import browser, terminals
from cloche_server.routing import Route, Streams, TerminalPage, UseLogin

_S: Final = "/v1/sandboxes/{sandbox_id}"
_T: Final = _S + "/terminals/{terminal_id}"

_TERMINALS: Final = [
    Route(
        "POST",
        _S + "/terminals",
        "create_terminal",
        "Start a program on a terminal",
        "terminals",
        {201: Terminal},
        body=TerminalCreate,
        role=Role.MEMBER,
    ),
    Route("GET", _S + "/terminals", "list_terminals", "Terminals, newest first", "terminals", {200: Page[Terminal]}),
    Route("GET", _T, "get_terminal", "One terminal", "terminals", {200: Terminal}, shareable=True),
    Route(
        "DELETE",
        _T,
        "delete_terminal",
        "End a terminal with all that it started",
        "terminals",
        {200: Terminal},
        role=Role.MEMBER,
    ),
    Route(
        "POST",
        _T + "/resize",
        "resize_terminal",
        "Give a terminal another size",
        "terminals",
        {200: Terminal},
        body=TerminalSize,
        role=Role.MEMBER,
    ),
    Route(
        "GET",
        _T + "/recording",
        "terminal_recording",
        "The recording, as an asciicast",
        "terminals",
        {200: "application/x-asciicast"},
    ),
    Route(
        "GET",
        _T + "/attach",
        "attach_terminal",
        "Watch or use a terminal, over WebSocket",
        "terminals",
        {101: "application/octet-stream"},
        streams=Streams.SOCKET,
        shareable=True,
        headers=("Sec-WebSocket-Protocol",),
    ),
    Route(
        "POST",
        _T + "/share",
        "share_terminal",
        "Make a link for watching a terminal",
        "terminals",
        {201: TerminalShare},
        terminals.share,
        body=TerminalShareCreate,
        role=Role.MEMBER,
        own_errors=(LimitReached,),
    ),
    Route(
        "GET",
        _T + "/shares",
        "list_terminal_shares",
        "The links for watching a terminal, oldest first, without their tokens",
        "terminals",
        {200: Page[TerminalShareInfo]},
        terminals.list_shares,
        role=Role.MEMBER,
    ),
    Route(
        "DELETE",
        _T + "/shares/{share_id}",
        "revoke_terminal_share",
        "Revoke one link; who watches by it is cut off",
        "terminals",
        {200: TerminalShareInfo},
        terminals.revoke_share,
        role=Role.MEMBER,
    ),
]

_BROWSER: Final = [
    Route(
        "POST",
        "/v1/browser/logins",
        "create_login",
        "Make a link that logs a browser in, once",
        "browser",
        {201: BrowserLogin},
        browser.create_login,
        body=BrowserLoginCreate,
    ),
    Route(
        "GET",
        "/ui/login",
        "login",
        "Turn such a link into a session",
        "browser",
        {303: "text/html"},
        browser.login,
        query=UseLogin,
        role=None,
        own_errors=(Unauthenticated,),
    ),
    Route(
        "GET",
        "/ui/terminal",
        "terminal_page",
        "A terminal in the browser",
        "browser",
        {200: "text/html"},
        browser.terminal_page,
        query=TerminalPage,
        role=None,
        own_errors=(NotFound,),
    ),
    Route(
        "GET",
        "/ui/assets/{asset}",
        "page_asset",
        "Scripts and styles of the pages",
        "browser",
        {200: "application/octet-stream"},
        browser.asset,
        role=None,
        own_errors=(NotFound,),
    ),
]

TERMINAL_ROUTES: Final = (*_TERMINALS, *_BROWSER)
