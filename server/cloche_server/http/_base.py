"""What every handler does before and after: admission, errors as JSON, one log line.

Order of admission: Host, path, method, Origin, key, role. So a stranger learns nothing but that a server is here, and a
rebound browser page not even that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from tornado.httputil import HTTPServerRequest
from tornado.iostream import IOStream
from tornado.web import Application, HTTPError, RequestHandler

from cloche.errors import (
    ClocheError,
    Forbidden,
    MalformedCursor,
    MethodNotAllowed,
    NotFound,
    SandboxUnreachable,
    Unauthenticated,
)
from cloche.models import Role, SandboxState
from cloche_server.auth import Principal, bearer_secret, require_role
from cloche_server.browser import cookie_name, session_principal, share_token
from cloche_server.http._errors import public_error
from cloche_server.ids import new_request_id
from cloche_server.origin import host_allowed, origin_allowed
from cloche_server.routing import Matched, Route, Streams, invalid
from cloche_server.sandboxes import Live, check_epoch, not_running
from cloche_server.services import Services
from cloche_server.uplink import PoolClosed

_ACCESS: Final = logging.getLogger("cloche.access")
_LOG: Final = logging.getLogger("cloche.http")

T = TypeVar("T")

AT_REST: Final = frozenset(
    {
        *(SandboxState.PAUSED, SandboxState.SUSPENDING, SandboxState.SUSPENDED, SandboxState.STOPPING),
        *(SandboxState.STOPPED, SandboxState.RESTORING),
    }
)

NOBODY: Final = Principal(key_id="", owner="", role=Role.VIEWER)
"""Who asks on routes that need no key."""

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class BaseHandler(RequestHandler):
    """Not used alone: `ApiHandler` and `SocketHandler` do the work."""

    def __init__(self, application: Application, request: HTTPServerRequest, **kwargs: Any) -> None:
        self.request_id = new_request_id()
        self.principal: Principal | None = None
        self.route: Route | None = None
        self.error_code: str | None = None
        self._began = time.monotonic()
        super().__init__(application, request, **kwargs)

    def initialize(self, services: Services, matched: Matched | None) -> None:
        self.services = services
        self.matched = matched

    def set_default_headers(self) -> None:
        self.set_header("Server", "cloche")
        self.set_header("X-Request-Id", self.request_id)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")

    def compute_etag(self) -> None:
        """Answers are not cached, so hashing them would be in vain."""

    # Admission

    def admit(self, upgrade: bool = False) -> Route:
        """The route this request may use; sets ``principal``. Raises what keeps it out."""
        request = self.request
        self._set_nodelay()
        host = request.headers.get("Host")
        if not host_allowed(host, self.services.host_names):
            raise Forbidden(
                "this server is not known by the name in the Host header",
                hint="use 127.0.0.1 or localhost, or start the server with --allowed-hosts",
                details={"header": "Host"},
            )
        route = self._find_route()
        self._check_origin(str(host), upgrade)
        self.principal = self._authenticate(route)
        return route

    def _find_route(self) -> Route:
        if self.matched is None:
            raise NotFound("there is no such path", hint="see /docs", details={"kind": "path"})
        method = "GET" if self.request.method == "HEAD" else self.request.method
        route = self.matched.methods.get(method or "")
        if route is None or (
            self.request.method == "HEAD" and (route.large or route.streams in (Streams.ALWAYS, Streams.OWN))
        ):
            raise MethodNotAllowed(
                f"{self.request.method} is not possible here", details={"allowed": [*self.allowed_methods()]}
            )
        self.route = route
        return route

    def allowed_methods(self) -> list[str]:
        methods = self.matched.methods if self.matched else {}
        return sorted({*methods, "OPTIONS", *(("HEAD",) if "GET" in methods else ())})

    def _check_origin(self, host: str, upgrade: bool) -> None:
        origin = self.request.headers.get("Origin")
        if origin is None or (self.request.method in _SAFE and not upgrade):
            return
        if not origin_allowed(origin, self.request.protocol, host, self.services.settings.allowed_origins):
            raise Forbidden(
                "a page of another origin may not do this",
                hint="start the server with --allowed-origins",
                details={"header": "Origin"},
            )

    def _authenticate(self, route: Route) -> Principal:
        if route.role is None:
            return NOBODY
        principal = self._shared(route) or self._by_session(route)
        if principal is None:
            principal = self.services.keys.find(bearer_secret(self.request.headers.get("Authorization")))
        if principal is None:
            raise Unauthenticated("the key is unknown or revoked", hint="ask an admin: cloche keys create")
        require_role(principal, route.role)
        return principal

    def _shared(self, route: Route) -> Principal | None:
        """By the link to one terminal. One that is over, or leads elsewhere, is refused, not passed over."""
        offered = self.request.headers.get("Sec-WebSocket-Protocol", "").split(",")
        token = share_token(self.request.headers.get("Authorization"), offered)
        if token is None or not route.shareable:
            return None
        assert self.matched is not None
        principal = self.services.shares.principal(token, self.matched.path)
        if principal is None:
            raise Unauthenticated("the link is over, was revoked, or leads to another terminal")
        return principal

    def _by_session(self, route: Route) -> Principal | None:
        """By the cookie of a browser, for requests without a key."""
        headers = self.request.headers
        cookie = self.get_cookie(cookie_name(headers.get("Host", "")))
        if cookie is None or "Authorization" in headers:
            return None
        changes = self.request.method not in _SAFE or route.streams is Streams.SOCKET
        if changes and "Origin" not in headers:  # one that is there was checked already
            raise Forbidden("a request that comes by cookie must say its Origin", details={"header": "Origin"})
        return session_principal(self.services.links, self.services.keys, cookie, time.time())

    def path_values(self) -> dict[str, str]:
        """`NotFound` for text that can be no id: nothing has that id."""
        assert self.matched is not None
        for name, text in self.matched.bad.items():
            kind = name.removesuffix("_id").removesuffix("_name") if name != "name" else "sandbox"
            raise NotFound(f"there is no such {kind}", details={"kind": kind, "id": text[:128]})
        return dict(self.matched.path)

    async def reach(self, route: Route, sandbox_id: str, begin: Callable[[Live], Awaitable[T]]) -> T:
        """``begin`` a call into the sandbox; one that works there wakes it. Raises what `SandboxService.awake` does.

        A call that waited for a connection while the sandbox was put to rest was not sent, and begins once more.
        """
        try:
            return await begin(await self._live(route, sandbox_id))
        except PoolClosed:
            return await begin(await self._live(route, sandbox_id))

    async def _live(self, route: Route, sandbox_id: str) -> Live:
        assert self.principal is not None
        sandboxes, epoch = self.services.sandboxes, epoch_header(self.request.headers.get("Cloche-Epoch"))
        if not route.looks:
            return await sandboxes.awake(self.principal, sandbox_id, epoch)
        check_epoch(sandboxes.get(self.principal, sandbox_id), epoch)
        return await sandboxes.running(self.principal, sandbox_id)

    def why_cut(self, error: ClocheError, sandbox_id: str) -> ClocheError:
        """The better reason for a stream that was cut: a sandbox at rest is not woken by its readers' coming back."""
        row = self.services.sandboxes.find(sandbox_id)
        if row is None or not isinstance(error, SandboxUnreachable) or row.state not in AT_REST:
            return error
        why = not_running(row)
        why.details["cut"] = True
        return why

    def _set_nodelay(self) -> None:
        """Small answers and events leave at once; Nagle's algorithm costs 40 ms for each (jupyter.md, finding 1)."""
        stream: IOStream | None = getattr(self.request.connection, "stream", None)
        if stream is not None and not stream.closed():
            stream.set_nodelay(True)

    # Errors

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = public_error(kwargs.get("exc_info", (None, None, None))[1])
        self.set_status(error.status)
        self.error_code = error.code
        if isinstance(error, MethodNotAllowed):
            self.set_header("Allow", ", ".join(self.allowed_methods()))
        if isinstance(error, Unauthenticated):
            self.set_header("WWW-Authenticate", 'Bearer realm="cloche"')
        self.set_header("Content-Type", "application/json")
        self.finish(error.to_body(self.request_id).model_dump_json())

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        if not isinstance(value, ClocheError | HTTPError):
            _LOG.error("unexpected exception", extra={"request_id": self.request_id}, exc_info=value)

    # The log

    def on_finish(self) -> None:
        self.log_access(self.get_status())

    def log_access(self, status: int) -> None:
        took_s = time.monotonic() - self._began
        route = None if self.route is None else self.route.path
        self.services.metrics.count_request(self.request.method or "", route, status, self.error_code)
        _ACCESS.info(
            "request",
            extra={
                "request_id": self.request_id,
                "method": self.request.method,
                "route": route,
                "status": status,
                "code": self.error_code,
                "ms": round(took_s * 1000, 2),
                "key_id": self.principal.key_id if self.principal else None,
                "sandbox_id": self.matched.path.get("sandbox_id") if self.matched else None,
            },
        )


def idempotency_key(header: str | None) -> str | None:
    """`InvalidRequest` unless it is 1 to 128 printable ASCII characters."""
    if header is None:
        return None
    if not (1 <= len(header) <= 128 and header.isascii() and header.isprintable()):
        raise invalid([("Idempotency-Key", "must be 1 to 128 printable ASCII characters")])
    return header


def last_event_id(header: str | None) -> str | None:
    """`MalformedCursor` for text that could be no cursor and may be no header."""
    if header is not None and not (len(header) <= 256 and header.isascii() and header.isprintable()):
        raise MalformedCursor("Last-Event-ID is not a cursor", hint="send back the id of the last event, unchanged")
    return header


def epoch_header(header: str | None) -> str | None:
    """`InvalidRequest` for what cannot be the epoch of a sandbox."""
    if header is not None and not (1 <= len(header) <= 64 and header.isascii() and header.isprintable()):
        raise invalid([("Cloche-Epoch", "must be the epoch of a sandbox, unchanged")])
    return header
