"""The routes of templates, pools and intents: part of the one table in `cloche_server.routes`."""

from __future__ import annotations

from typing import Final

from cloche.errors import (
    Conflict,
    CursorBeyondHead,
    DriverUnavailable,
    ForeignCursor,
    Gone,
    LimitReached,
    MalformedCursor,
    NotFound,
    TemplateBuildFailed,
)
from cloche.models import (
    Intent,
    IntentCreate,
    Page,
    Pool,
    PoolCreate,
    Role,
    Template,
    TemplateCreate,
    TemplateLog,
)
from cloche_server.api import pools, templates
from cloche_server.routing import (
    BuildFromCursor,
    BuildWait,
    ListPools,
    ListTemplates,
    OfOwner,
    Route,
    Streams,
    WaitForBuild,
)

_T: Final = "/v1/templates/{template_ref}"
_P: Final = "/v1/pools/{pool_name}"

_TEMPLATES: Final = [
    Route(
        "POST",
        "/v1/templates",
        "create_template",
        "Build a template, or get the version that these inputs have made",
        "templates",
        {201: Template, 202: Template},
        templates.create,
        body=TemplateCreate,
        query=BuildWait,
        role=Role.MEMBER,
        own_errors=(NotFound, Conflict, LimitReached, DriverUnavailable, TemplateBuildFailed),
    ),
    Route(
        "GET",
        "/v1/templates",
        "list_templates",
        "Templates by name, newest version first",
        "templates",
        {200: Page[Template]},
        templates.list_some,
        query=ListTemplates,
    ),
    Route(
        "GET",
        _T,
        "get_template",
        "One version; can wait for its build",
        "templates",
        {200: Template, 202: Template},
        templates.get,
        query=WaitForBuild,
        own_errors=(NotFound, Gone),
    ),
    Route(
        "GET",
        _T + "/log",
        "template_log",
        "What the build printed, so far",
        "templates",
        {200: TemplateLog},
        templates.log,
        query=OfOwner,
        own_errors=(NotFound, Gone),
    ),
    Route(
        "GET",
        _T + "/events",
        "follow_template",
        "What the build prints, and how it ends: `output`, `gap`, `finished`",
        "templates",
        {200: "text/event-stream"},
        templates.follow,
        query=BuildFromCursor,
        own_errors=(NotFound, Gone, MalformedCursor, ForeignCursor, CursorBeyondHead),
        streams=Streams.OWN,
        headers=("Last-Event-ID",),
    ),
    Route(
        "DELETE",
        _T,
        "delete_template",
        "Delete a version, or all of a name",
        "templates",
        {200: Template},
        templates.delete,
        query=OfOwner,
        role=Role.MEMBER,
        own_errors=(NotFound, Gone, Conflict),
    ),
]

_POOLS: Final = [
    Route(
        "PUT",
        _P,
        "put_pool",
        "Make or change a pool of ready sandboxes",
        "pools",
        {200: Pool},
        pools.put,
        body=PoolCreate,
        role=Role.MEMBER,
        own_errors=(NotFound, Gone, Conflict, LimitReached, DriverUnavailable),
    ),
    Route(
        "GET",
        "/v1/pools",
        "list_pools",
        "All pools and how full they are",
        "pools",
        {200: Page[Pool]},
        pools.list_all,
        query=ListPools,
    ),
    Route("GET", _P, "get_pool", "One pool", "pools", {200: Pool}, pools.get, query=OfOwner, own_errors=(NotFound,)),
    Route(
        "DELETE",
        _P,
        "delete_pool",
        "Delete a pool with all that are ready in it",
        "pools",
        {200: Pool},
        pools.delete,
        query=OfOwner,
        role=Role.MEMBER,
        own_errors=(NotFound,),
    ),
    Route(
        "POST",
        "/v1/intents",
        "create_intent",
        "Say that creates are likely soon",
        "pools",
        {202: Intent},
        pools.intend,
        body=IntentCreate,
        role=Role.MEMBER,
        own_errors=(NotFound, Gone, Conflict, DriverUnavailable),
    ),
]

TEMPLATE_ROUTES: Final = (*_TEMPLATES, *_POOLS)
