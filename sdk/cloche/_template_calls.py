"""The calls of templates, pools and intents; as `cloche._calls`, whose contract is docs/protocol.md."""

from __future__ import annotations

import re
from typing import Final

from cloche import models
from cloche._answers import model_parser
from cloche._calls import CREATE_ANSWER_S, DEFAULT_ANSWER_S, Call, Query, json_body, segment
from cloche.errors import InvalidRequest

_template = model_parser(models.Template)
_templates = model_parser(models.Page[models.Template])
_log = model_parser(models.TemplateLog)
_pool = model_parser(models.Pool)
_pools = model_parser(models.Page[models.Pool])
_intent = model_parser(models.Intent)

_REFERENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}(@[1-9][0-9]{0,8})?")


def template_path(reference: str) -> str:
    """
    :raises InvalidRequest: it is neither ``name`` nor ``name@version``.
    """
    if _REFERENCE.fullmatch(reference) is None:
        raise InvalidRequest(
            f"{reference!r} is no template", hint="name or name@version", details={"field": "template"}
        )
    return f"/v1/templates/{reference}"


def pool_path(name: str) -> str:
    return f"/v1/pools/{segment('pool', name)}"


def create_template(body: models.TemplateCreate) -> Call[models.Template]:
    """Begin a build, and do not wait for it. Repeatable: the same inputs are the same build."""
    query = (("wait", "false"),)
    return Call("POST", "/v1/templates", _template, query=query, body=json_body(body), repeatable=True)


def templates(query: Query) -> Call[models.Page[models.Template]]:
    return Call("GET", "/v1/templates", _templates, query=query, repeatable=True)


def template(reference: str, wait_s: float = 0, query: Query = ()) -> Call[models.Template]:
    query = (("wait_s", f"{wait_s:g}"), *query) if wait_s else query
    within_s = DEFAULT_ANSWER_S + wait_s
    return Call("GET", template_path(reference), _template, query=query, repeatable=True, answer_within_s=within_s)


def delete_template(reference: str, query: Query) -> Call[models.Template]:
    return Call("DELETE", template_path(reference), _template, query=query, answer_within_s=CREATE_ANSWER_S)


def template_log(reference: str, query: Query = ()) -> Call[models.TemplateLog]:
    return Call("GET", f"{template_path(reference)}/log", _log, query=query, repeatable=True)


def template_events_path(reference: str) -> str:
    return f"{template_path(reference)}/events"


def put_pool(name: str, body: models.PoolCreate) -> Call[models.Pool]:
    return Call("PUT", pool_path(name), _pool, body=json_body(body), repeatable=True)


def pools(query: Query) -> Call[models.Page[models.Pool]]:
    """All in one page."""
    return Call("GET", "/v1/pools", _pools, query=query, repeatable=True)


def pool(name: str, query: Query) -> Call[models.Pool]:
    return Call("GET", pool_path(name), _pool, query=query, repeatable=True)


def delete_pool(name: str, query: Query) -> Call[models.Pool]:
    return Call("DELETE", pool_path(name), _pool, query=query, answer_within_s=CREATE_ANSWER_S)


def create_intent(body: models.IntentCreate) -> Call[models.Intent]:
    """Not repeatable: two intents are for twice as many."""
    return Call("POST", "/v1/intents", _intent, body=json_body(body))
