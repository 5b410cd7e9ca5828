"""Which of two a request is for, by its Host header alone: the API, or a preview. They share a port and nothing else.

Decided for each request, not for each connection: a proxy in front may send both over one.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import cast

from tornado.http1connection import HTTP1Connection
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerConnectionDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from cloche_server.preview import PreviewGateway


class FrontDoor(HTTPServerConnectionDelegate):
    """In front of the API's application and the gateway."""

    def __init__(self, api: HTTPServerConnectionDelegate, gateway: PreviewGateway) -> None:
        self._api = api
        self._gateway = gateway

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        return _Undecided(self._api, self._gateway, server_conn, cast("HTTP1Connection", request_conn))

    def on_close(self, server_conn: object) -> None:
        self._api.on_close(server_conn)


class _Undecided(HTTPMessageDelegate):
    """Until the headers are there; then it passes everything on."""

    def __init__(
        self,
        api: HTTPServerConnectionDelegate,
        gateway: PreviewGateway,
        server_conn: object,
        connection: HTTP1Connection,
    ) -> None:
        self._api = api
        self._gateway = gateway
        self._server_conn = server_conn
        self._connection = connection
        self._chosen: HTTPMessageDelegate | None = None

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        host = self._gateway.host_of(headers)
        if host is None:
            self._chosen = self._api.start_request(self._server_conn, self._connection)
        else:
            self._chosen = self._gateway.exchange(self._connection, host)
        return self._chosen.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        assert self._chosen is not None
        return self._chosen.data_received(chunk)

    def finish(self) -> None:
        assert self._chosen is not None
        self._chosen.finish()

    def on_connection_close(self) -> None:
        if self._chosen is not None:
            self._chosen.on_connection_close()
