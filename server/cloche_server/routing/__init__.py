"""What routes are made of; the table itself is `cloche_server.routes`."""

from cloche_server.routing._match import Matched, RouteIndex
from cloche_server.routing._params import (
    PATH_TYPES,
    FromCursor,
    HistoryLimit,
    ListKeys,
    ListSandboxes,
    NoQuery,
    OutputPage,
    ProcessEvents,
    Query,
    Stdin,
    Wait,
    WaitByDefault,
    invalid,
    parse_query,
    problems_of,
)
from cloche_server.routing._route import Act, Call, Reply, Route, Streams

__all__ = [
    "PATH_TYPES",
    "Act",
    "Call",
    "FromCursor",
    "HistoryLimit",
    "ListKeys",
    "ListSandboxes",
    "Matched",
    "NoQuery",
    "OutputPage",
    "ProcessEvents",
    "Query",
    "Reply",
    "Route",
    "RouteIndex",
    "Stdin",
    "Streams",
    "Wait",
    "WaitByDefault",
    "invalid",
    "parse_query",
    "problems_of",
]
