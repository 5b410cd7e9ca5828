"""From the route table to a Tornado server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.web import Application

from cloche_server.http._front_door import FrontDoor
from cloche_server.http._handler import DRAINED_BYTES, ApiHandler
from cloche_server.http._socket import SocketHandler
from cloche_server.preview import PreviewGateway
from cloche_server.routing import Route, RouteIndex, Streams
from cloche_server.services import Services

MAX_HEADER_BYTES: Final = 32 * 1024
IDLE_S: Final = 75.0
"""For the next request of a connection and all of its headers: above the 60 s after which common proxies hang up."""
BODY_S: Final = 60.0
PING_S: Final = 20.0
"""Proxies in the field cut silent connections after 60 s (suna#7062)."""


class App(Application):
    """Finds handlers by our own index: there is no second list of paths."""

    def __init__(self, services: Services, routes: Sequence[Route], **settings: Any) -> None:
        super().__init__(**settings)
        self._services = services
        self._index = RouteIndex(routes)

    def find_handler(self, request: HTTPServerRequest, **_: Any) -> Any:
        matched = self._index.match(request.path)
        upgrade = request.method == "GET" and request.headers.get("Upgrade", "").lower() == "websocket"
        route = matched.methods.get("GET") if matched else None
        streams = route is not None and route.streams in {Streams.ALWAYS, Streams.SOCKET}
        handler = SocketHandler if upgrade and streams else ApiHandler
        return self.get_handler_delegate(request, handler, {"services": self._services, "matched": matched})


def make_app(services: Services, routes: Sequence[Route]) -> App:
    return App(
        services,
        routes,
        log_function=lambda _: None,  # handlers write their own line, with the route instead of the URL
        websocket_max_message_size=services.settings.max_body_bytes,
        websocket_ping_interval=PING_S,
        websocket_ping_timeout=PING_S,
    )


def make_http_server(app: App, previews: PreviewGateway) -> HTTPServer:
    """Slow and idle clients are bounded here; the typed limit of bodies is the handler's."""
    return HTTPServer(
        FrontDoor(app, previews),
        max_header_size=MAX_HEADER_BYTES,
        max_body_size=DRAINED_BYTES,
        body_timeout=BODY_S,
        idle_connection_timeout=IDLE_S,
    )
