"""The routes of ports and previews; part of `cloche_server.routes`."""

from __future__ import annotations

from typing import Final

from cloche.errors import LimitReached
from cloche.models import ListeningPort, Page, Preview, PreviewCreate, PreviewToken, PreviewTokenCreate, Role
from cloche_server.api import previews
from cloche_server.routing import Route

_S: Final = "/v1/sandboxes/{sandbox_id}"
_P: Final = _S + "/previews/{port}"

PREVIEW_ROUTES: Final = [
    Route("GET", _S + "/ports", "list_ports", "Ports something listens on", "ports", {200: Page[ListeningPort]}),
    Route(
        "GET",
        _S + "/previews",
        "list_previews",
        "All previews of a sandbox",
        "previews",
        {200: Page[Preview]},
        previews.list_all,
    ),
    Route(
        "POST",
        _P,
        "create_preview",
        "Make or change the preview of a port",
        "previews",
        {200: Preview},
        previews.put,
        body=PreviewCreate,
        role=Role.MEMBER,
        own_errors=(LimitReached,),
    ),
    Route("GET", _P, "get_preview", "One preview", "previews", {200: Preview}, previews.get),
    Route(
        "DELETE",
        _P,
        "delete_preview",
        "End a preview, its tokens and its connections",
        "previews",
        {200: Preview},
        previews.delete,
        role=Role.MEMBER,
    ),
    Route(
        "POST",
        _P + "/token",
        "create_preview_token",
        "A link that lets its holder in for a time",
        "previews",
        {200: PreviewToken},
        previews.sign,
        body=PreviewTokenCreate,
        role=Role.MEMBER,
    ),
    Route(
        "DELETE",
        _P + "/tokens",
        "revoke_preview_tokens",
        "End every token of a preview at once, and what it let in",
        "previews",
        {200: Preview},
        previews.revoke,
        role=Role.MEMBER,
    ),
]
