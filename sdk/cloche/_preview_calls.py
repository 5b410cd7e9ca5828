"""The calls of ports and previews; as `cloche._calls`, whose contract is docs/protocol.md."""

from __future__ import annotations

from cloche import models
from cloche._answers import model_parser
from cloche._calls import Call, json_body, sandbox_path
from cloche.errors import InvalidRequest

_ports = model_parser(models.Page[models.ListeningPort])
_preview = model_parser(models.Preview)
_previews = model_parser(models.Page[models.Preview])
_token = model_parser(models.PreviewToken)

MAX_PORT = 65_535


def ports(sandbox_id: str) -> Call[models.Page[models.ListeningPort]]:
    return Call("GET", f"{sandbox_path(sandbox_id)}/ports", _ports, repeatable=True)


def preview_path(sandbox_id: str, port: int) -> str:
    """
    :raises InvalidRequest: no port has this number.
    """
    if not 1 <= port <= MAX_PORT:
        raise InvalidRequest(f"{port} is no port", hint=f"ports are 1 to {MAX_PORT}", details={"field": "port"})
    return f"{sandbox_path(sandbox_id)}/previews/{port}"


def previews(sandbox_id: str) -> Call[models.Page[models.Preview]]:
    return Call("GET", f"{sandbox_path(sandbox_id)}/previews", _previews, repeatable=True)


def put_preview(path: str, body: models.PreviewCreate) -> Call[models.Preview]:
    return Call("POST", path, _preview, body=json_body(body), repeatable=True)


def preview(path: str) -> Call[models.Preview]:
    return Call("GET", path, _preview, repeatable=True)


def delete_preview(path: str) -> Call[models.Preview]:
    return Call("DELETE", path, _preview)


def create_preview_token(path: str, body: models.PreviewTokenCreate) -> Call[models.PreviewToken]:
    """Repeatable: a token that nobody received lets nobody in."""
    return Call("POST", f"{path}/token", _token, body=json_body(body), repeatable=True)


def revoke_preview_tokens(path: str) -> Call[models.Preview]:
    return Call("DELETE", f"{path}/tokens", _preview, repeatable=True)
