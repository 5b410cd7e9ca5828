"""The routes of usage and metrics; part of `cloche_server.routes`."""

from __future__ import annotations

from typing import Final

from cloche.models import Page, Role, Usage
from cloche_server.api import usage
from cloche_server.metrics import CONTENT_TYPE
from cloche_server.routing import ListUsage, Route

USAGE_ROUTES: Final = [
    Route(
        "GET",
        "/v1/sandboxes/{sandbox_id}/usage",
        "sandbox_usage",
        "What a sandbox has cost in all its lives",
        "usage",
        {200: Usage},
        usage.of_sandbox,
    ),
    Route(
        "GET",
        "/v1/usage",
        "list_usage",
        "The same of many, in the order of the list of sandboxes",
        "usage",
        {200: Page[Usage]},
        usage.list_some,
        query=ListUsage,
    ),
    Route(
        "GET",
        "/metrics",
        "metrics",
        "Numbers about the server, for Prometheus",
        "server",
        {200: CONTENT_TYPE},
        usage.metrics,
        role=Role.ADMIN,
    ),
]
