"""OpenAPI 3.1 from the route table and the models. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from cloche.errors import ClocheError, ErrorBody
from cloche.models import Model
from cloche_server.routing import PATH_TYPES, Query, Route, Streams

_REF: Final = "#/components/schemas/{model}"

_DESCRIPTION: Final = """Stateful code execution in isolated sandboxes.

Errors of every route are ErrorBody; docs/errors.md explains each code. Event streams are server-sent events, or
WebSocket when the request asks for an upgrade; docs/protocol.md describes both."""

_HEADER_PARAMETERS: Final[Mapping[str, dict[str, Any]]] = {
    "Idempotency-Key": {
        "schema": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[ -~]*$"},
        "description": "the same key and body give what was made the first time; kept for a day",
    },
    "Cloche-Epoch": {
        "schema": {"type": "string", "maxLength": 64},
        "description": "`epoch` of the sandbox as the caller knows it; `stale` when what was in its memory then is gone",
    },
    "If-Match": {
        "schema": {"type": "string", "maxLength": 4096},
        "description": "write only if the file has one of these entity tags; `*`: if it is there",
    },
    "If-None-Match": {
        "schema": {"type": "string", "maxLength": 4096},
        "description": "read only what has another entity tag (304); write only what is not there (`*`)",
    },
    "Range": {
        "schema": {"type": "string", "maxLength": 4096},
        "description": "one range, as in `bytes=0-99`; anything else is ignored",
    },
    "Last-Event-ID": {
        "schema": {"type": "string", "maxLength": 256},
        "description": "cursor to go on behind; wins over `cursor`",
    },
}


def openapi_document(routes: Sequence[Route]) -> bytes:
    """The served bytes."""
    return json.dumps(build_document(routes), separators=(",", ":")).encode()


def build_document(routes: Sequence[Route]) -> dict[str, Any]:
    refs, schemas = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Cloche", "version": version("cloche"), "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "bearerFormat": "clk_..."}},
        },
    }


Refs = Mapping[type[BaseModel], dict[str, Any]]


def _schemas(routes: Sequence[Route]) -> tuple[Refs, dict[str, Any]]:
    """Bodies as they may come, answers as they are sent; a model used both ways gets two names only if they differ."""
    bodies: dict[type[BaseModel], None] = {route.body: None for route in routes if route.body is not None}
    answers: dict[type[BaseModel], None] = {ErrorBody: None}
    for route in routes:
        answers |= {model: None for model in route.answers.values() if not isinstance(model, str)}
    found, document = models_json_schema(
        [*((body, "validation") for body in bodies), *((answer, "serialization") for answer in answers)],
        ref_template=_REF,
    )
    refs = {model: schema for (model, _), schema in found.items()}
    _close_maps(document["$defs"])
    return refs, document["$defs"]  # type: ignore[return-value]


def _close_maps(schema: Any) -> None:
    """Keys that fit no pattern are refused; pydantic says so only of models."""
    if isinstance(schema, dict):
        if "patternProperties" in schema:
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            _close_maps(value)
    elif isinstance(schema, list):
        for item in schema:
            _close_maps(item)


def _operation(route: Route, refs: Refs) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "tags": [route.tag],
        "parameters": [*_path_parameters(route), *_query_parameters(route.query), *_header_parameters(route)],
        "responses": _responses(route, refs),
        "security": [] if route.role is None else [{"key": []}],
    }
    if route.bytes_body:
        content: dict[str, Any] = {"application/octet-stream": {"schema": {}}}
        operation["requestBody"] = {"required": False, "content": content}
    if route.body is not None:
        operation["requestBody"] = {
            "required": not _all_optional(route.body),
            "content": {"application/json": {"schema": refs[route.body]}},
        }
    return operation


def _all_optional(model: type[Model]) -> bool:
    return not any(field.is_required() for field in model.model_fields.values())


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    names = [segment[1:-1] for segment in route.path.split("/") if segment.startswith("{")]
    return [{"name": name, "in": "path", "required": True, "schema": PATH_TYPES[name].json_schema()} for name in names]


def _query_parameters(model: type[Query]) -> list[dict[str, Any]]:
    schema = model.model_json_schema(ref_template=_REF)
    required = schema.get("required", [])
    definitions = schema.get("$defs", {})
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "schema": _without_null(_inlined(prop, definitions)),
            **({"description": prop["description"]} if "description" in prop else {}),
            **({"style": "form", "explode": True} if prop.get("type") == "array" else {}),
        }
        for name, prop in schema.get("properties", {}).items()
    ]


def _inlined(prop: Any, definitions: Mapping[str, Any]) -> Any:
    """Enums of parameters are written out: they belong to no component."""
    if isinstance(prop, dict):
        if "$ref" in prop:
            return definitions[prop["$ref"].rsplit("/", 1)[-1]]
        return {key: _inlined(value, definitions) for key, value in prop.items()}
    if isinstance(prop, list):
        return [_inlined(item, definitions) for item in prop]
    return prop


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is absent or has a value; there is no null in a URL."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    return choices[0] if len(choices) == 1 else schema


def _header_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, **_HEADER_PARAMETERS[name]}
        for name in (*route.headers, *(("Cloche-Epoch",) if route.to_guest else ()))
        if name in _HEADER_PARAMETERS
    ]


def _responses(route: Route, refs: Refs) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, model in route.answers.items():
        responses[str(status)] = {"description": _phrase(status), "content": _content(route, model, refs)}
    by_status: dict[int, list[type[ClocheError]]] = {}
    for error in route.errors:
        by_status.setdefault(error.status, []).append(error)
    for status, errors in sorted(by_status.items()):
        responses[str(status)] = {
            "description": ", ".join(error.code for error in errors),
            "content": {"application/json": {"schema": refs[ErrorBody]}},
        }
    return responses


def _phrase(status: int) -> str:
    phrases = {101: "the protocol of docs/terminals.md", 206: "a range", 303: "go on there", 304: "unchanged"}
    return {200: "done", 201: "made", 202: "not finished yet", **phrases}[status]


def _content(route: Route, model: type[BaseModel] | str, refs: Refs) -> dict[str, Any]:
    if isinstance(model, str):
        return {model: {"schema": {} if model == "application/json" else {"type": "string"}}}
    content: dict[str, Any] = {"application/json": {"schema": refs[model]}}
    if route.streams is Streams.ON_REQUEST:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return content
