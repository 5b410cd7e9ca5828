"""The gateway: what all requests to previews share."""

from __future__ import annotations

from tornado.http1connection import HTTP1Connection
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate

from cloche_server.open_calls import OpenCalls
from cloche_server.origin import LOOPBACK_NAMES, host_name
from cloche_server.preview._app import Tunnels
from cloche_server.preview._exchange import PreviewExchange
from cloche_server.preview._headers import COOKIE, SECURE_COOKIE, Border
from cloche_server.preview._names import PreviewHost, parse_host
from cloche_server.preview._service import PreviewService
from cloche_server.sandboxes import SandboxService
from cloche_server.state import KeyStore


class PreviewGateway:
    """One instance a server. Call `close` at the end."""

    def __init__(
        self,
        previews: PreviewService,
        *,
        sandboxes: SandboxService,
        keys: KeyStore,
        open_calls: OpenCalls,
        host_names: frozenset[str],
    ) -> None:
        self.previews = previews
        self.sandboxes = sandboxes
        self.keys = keys
        self.open_calls = open_calls
        self.tunnels = Tunnels()
        self.cookie_name = SECURE_COOKIE if previews.scheme == "https" else COOKIE
        self._public_names = host_names - LOOPBACK_NAMES

    def host_of(self, headers: HTTPHeaders) -> PreviewHost | None:
        """None: this request is for the API."""
        hosts = headers.get_list("Host")
        return parse_host(hosts[0], self.previews.domain) if len(hosts) == 1 else None

    def exchange(self, connection: HTTP1Connection, host: PreviewHost) -> HTTPMessageDelegate:
        return PreviewExchange(self, connection, host)

    def border(self, host: PreviewHost, private: bool) -> Border:
        return Border(host, self.previews.scheme, self.previews.domain, private, self._is_api)

    def _is_api(self, authority: str) -> bool:
        """Names of loopback mean the sandbox' own here, and are translated before anybody asks."""
        return host_name(authority) in self._public_names

    def close(self) -> None:
        self.tunnels.close()
