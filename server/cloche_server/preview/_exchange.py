"""One request to a preview: let in or not, carried to the app, its answer carried back.

Tornado reads the visitor's HTTP and writes the answer's framing, h11 speaks to the app; what is between is bytes, awaited on
both sides, so the slower one sets the pace and nothing is collected. A WebSocket is a handshake of this kind and then two
streams of bytes: frames are neither read nor changed.

Life: `headers_received` decides. Then either an answer of our own is sent, once the body was read (else the visitor may
never see it); or a task carries the answer while `data_received` carries the body. `_release` is the one end of all.
"""

from __future__ import annotations

import asyncio
import http
import logging
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final, cast

import h11
from tornado import httputil
from tornado.http1connection import HTTP1Connection
from tornado.iostream import IOStream, StreamClosedError
from websockets.utils import accept_key

from cloche.errors import (
    ClocheError,
    ConnectionFailed,
    Forbidden,
    GuestFault,
    InternalError,
    InvalidRequest,
)
from cloche.models import Role
from cloche_server.auth import Principal
from cloche_server.ids import new_request_id
from cloche_server.preview import _headers as rules
from cloche_server.preview._app import MAX_HEADER_BYTES, AppAddress, app_broke, open_tunnel
from cloche_server.preview._names import PreviewHost
from cloche_server.preview._pages import OwnAnswer, answer_of, no_preview
from cloche_server.preview._request import VisitorRequest, is_length
from cloche_server.preview._service import Admission
from cloche_server.preview._socket_relay import relay
from cloche_server.relay import Exchange, ExchangeError
from cloche_server.uplink import Wire, WireClosed, WirePool

if TYPE_CHECKING:
    from cloche_server.preview._gateway import PreviewGateway

_ACCESS: Final = logging.getLogger("cloche.access")
_LOG: Final = logging.getLogger("cloche.preview")

IDLE_S: Final = 600.0
"""Without a byte in either direction, the wait for an answer included: long polls and silent event streams stay below."""
SOCKET_IDLE_S: Final = 3600.0
HANDSHAKE_S: Final = 60.0

DRAINED_BYTES: Final = 64 * 1024 * 1024
DRAINED_S: Final = 10.0
"""A body nobody wants any more is read this far, so that the visitor gets to read the answer."""

SHORT_BYTES: Final = 16 * 1024
_NO_LIMIT: Final = 2**62
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class PreviewExchange(httputil.HTTPMessageDelegate):
    """Use once. It is a `Visitor` of the previews and one of the server's open calls."""

    def __init__(self, gateway: PreviewGateway, connection: HTTP1Connection, host: PreviewHost) -> None:
        self._gateway = gateway
        self._connection = connection
        self._host = host
        self._request_id = new_request_id()
        self._began = self._active = time.monotonic()
        self._stack = ExitStack()
        self._own_answer: OwnAnswer | None = None
        self._app: Exchange | None = None
        self._stream: IOStream | None = None
        self._task: asyncio.Task[None] | None = None
        self._reading = True
        self._dropped = 0
        self._read = asyncio.Event()
        self._is_clear = False
        self._answering = False
        self._released = False
        self._status = 0
        self._timers: list[asyncio.TimerHandle] = []
        self.is_stream = False

    # What Tornado calls

    async def headers_received(
        self, start_line: httputil.RequestStartLine | httputil.ResponseStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        line = cast("httputil.RequestStartLine", start_line)
        self._request = VisitorRequest(line.method, line.path, line.version, headers)
        self._connection.set_close_callback(self.on_connection_close)
        self._connection.stream.set_nodelay(True)
        self._gateway.open_calls.add(self)
        try:
            await self._open()
        except (ClocheError, ExchangeError, WireClosed) as error:
            self._refuse(error)
        except Exception:
            _LOG.exception("unexpected exception", extra={"request_id": self._request_id})
            self._refuse(_defect())

    async def data_received(self, chunk: bytes) -> None:
        self._be_active()
        if self._app is None or not self._reading:
            self._dropped += len(chunk)
            if self._dropped > DRAINED_BYTES:
                self._cut()
            return
        try:
            await self._app.add(chunk)
        except (WireClosed, h11.LocalProtocolError):
            self._reading = False  # its answer may still be on its way

    def finish(self) -> None:
        self._read.set()
        if self._own_answer is not None:
            self._send_own()
        elif self._app is not None and self._reading:
            self._reading = False
            self._end = asyncio.create_task(self._end_request(self._app))
        elif self._task is None and not self._released:
            self._spawn(self._ask_without_body())

    def on_connection_close(self) -> None:
        """The visitor is gone."""
        self._cut()

    # What the server calls

    def stop(self) -> None:
        self._cut()

    def revoke(self) -> None:
        self._cut()

    def _cut(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._close_visitor()
        self._release()

    # Admission

    async def _open(self) -> None:
        self._request.check_form()
        self._is_clear = True
        previews = self._gateway.previews
        admission = previews.admit(self._host, self._request.credentials(self._gateway.cookie_name, self._gateway.keys))
        if admission is None:
            raise no_preview()
        self._border = self._gateway.border(self._host, admission.row.visibility == "private")
        if rules.token_of(self._request.target) is not None:
            if self._request.as_page and not self._request.wants_upgrade:
                self._own_answer = self._redirect(admission)
                return
            self._request.target = rules.without_token(self._request.target)
        self._check_origin(admission)
        self._stack.enter_context(previews.visit(self, admission))
        self._start_timers(previews.seconds_left(admission))
        owner = Principal(key_id="", owner=admission.owner, role=Role.MEMBER)
        live = await self._gateway.sandboxes.awake(owner, self._host.sandbox_id)
        self._address = AppAddress(live.row.id, live.row.epoch, self._host.port)
        self._pool: WirePool = live.uplink.pool
        if self._request.wants_upgrade:
            await self._upgrade()
        elif self._request.framing():
            await self._ask_with_body()

    def _check_origin(self, admission: Admission) -> None:
        """A cookie comes along with whatever page asks. Pages of other sites may neither change things nor open sockets."""
        origin = self._request.headers.get("Origin")
        changes = self._request.wants_upgrade or self._request.method not in _SAFE
        if admission.by == "cookie" and changes and origin is not None and not self._border.is_own_origin(origin):
            raise Forbidden("a page of another origin may not do this", details={"header": "Origin"})

    def _redirect(self, admission: Admission) -> OwnAnswer:
        """To the same place without the token, which then is a cookie."""
        self._status = http.HTTPStatus.FOUND
        headers = [
            ("Location", self._border.outer_origin + rules.without_token(self._request.target)),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("Content-Length", "0"),
        ]
        if admission.cookie is not None:
            left = int(self._gateway.previews.seconds_left(admission) or 0)
            secure = "; Secure" if self._border.scheme == "https" else ""
            cookie = f"{self._gateway.cookie_name}={admission.cookie}; Path=/; Max-Age={left}; HttpOnly; SameSite=Lax"
            headers.append(("Set-Cookie", cookie + secure))
        return OwnAnswer(http.HTTPStatus.FOUND, tuple(headers), b"")

    # To the app

    def _sent_headers(self, upgrade: bool) -> rules.Headers:
        client = str(getattr(self._connection.context, "remote_ip", "") or "unknown")
        headers = self._request.headers.get_all()
        return rules.request_headers(headers, self._border, client, upgrade) + self._request.framing()

    async def _ask_without_body(self) -> None:
        """Over a kept tunnel when there is one. One that closed before it answered is replaced, once."""
        kept = self._gateway.tunnels.take(self._address) if self._request.method in _SAFE else None
        if kept is not None:
            try:
                await self._answer(await self._begin(kept))
            except WireClosed:
                if self._answering:
                    raise
            else:
                return
        await self._answer(await self._begin(await open_tunnel(self._pool, self._host.port)))

    async def _begin(self, wire: Wire, upgrade: bool = False) -> h11.Response | h11.InformationalResponse:
        app = await self._send_head(wire, upgrade)
        await app.end()
        return await app.head()

    async def _send_head(self, wire: Wire, upgrade: bool = False) -> Exchange:
        if self._released:
            wire.close()
            raise WireClosed("the visitor is gone")
        if self._app is not None:
            self._app.close()
        app = self._app = Exchange(wire, MAX_HEADER_BYTES)
        try:
            await app.begin(self._request.method, self._request.target, self._sent_headers(upgrade))
        except h11.LocalProtocolError as error:
            raise InvalidRequest("the request could not be passed on") from error
        return app

    async def _ask_with_body(self) -> None:
        self._connection.set_max_body_size(_NO_LIMIT)
        self._connection.set_body_timeout(cast("float", None))  # idleness is bounded here
        app = await self._send_head(await open_tunnel(self._pool, self._host.port))
        self._spawn(self._answer_when_there(app))

    async def _answer_when_there(self, app: Exchange) -> None:
        await self._answer(await app.head())

    async def _end_request(self, app: Exchange) -> None:
        try:
            await app.end()
        except (WireClosed, h11.LocalProtocolError):
            return

    # And back

    async def _answer(self, response: h11.Response | h11.InformationalResponse) -> None:
        app = self._app
        assert app is not None
        if not isinstance(response, h11.Response):
            raise ExchangeError("the app changed the protocol without being asked")
        headers = httputil.HTTPHeaders()
        for name, value in rules.response_headers(_text(response), self._border):
            headers.add(name, value)
        self.is_stream = headers.get("Content-Type", "").lower().startswith("text/event-stream")
        if self.is_stream:
            self._check_open()
        parts = app.body()
        # One packet for head and body of a small answer. A longer one, or a stream, shows its head at once.
        first = await anext(parts, None) if _is_short(headers) else None
        self._status = response.status_code
        self._answering = True
        await self._connection.write_headers(_status_line(response), headers, first)
        async for part in parts:
            self._be_active()
            await self._connection.write(part)
        self._reading = False
        await self._drain()
        if self._request.version == "HTTP/1.0" and "Content-Length" not in headers:
            self._connection.close()
        else:
            self._connection.finish()
        if app.reusable:
            self._app = None
            self._gateway.tunnels.give_back(self._address, app.wire)

    async def _drain(self) -> None:
        """Tornado closes the connection of a request that is answered before it was read."""
        try:
            async with asyncio.timeout(DRAINED_S):
                await self._read.wait()
        except TimeoutError:
            return

    def _check_open(self) -> None:
        """A stream that begins while the server ends would be cut at once."""
        if self._gateway.open_calls.closing:
            raise ConnectionFailed("the server is shutting down; sandboxes go on", hint="try again in a moment")

    # WebSocket

    async def _upgrade(self) -> None:
        self._check_open()
        wire = await open_tunnel(self._pool, self._host.port)
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                response = await self._begin(wire, upgrade=True)
        except TimeoutError:
            raise GuestFault(f"the app did not answer the handshake within {HANDSHAKE_S:g} s") from None
        if isinstance(response, h11.Response):
            self._spawn(self._answer(response))
            return
        self._check_accept(response)
        self._status, self.is_stream = 101, True
        headers = [
            pair
            for pair in rules.response_headers(_text(response), self._border)
            if pair[0].lower() != "content-length"
        ]
        lines = ["HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", "Upgrade: websocket"]
        lines += [f"{name}: {value}" for name, value in headers]
        self._stream = self._connection.detach()
        self._spawn(self._relay(self._stream, wire, "\r\n".join([*lines, "", ""]).encode("latin-1")))

    def _check_accept(self, response: h11.InformationalResponse) -> None:
        """A proxy in front must not take something for a WebSocket that is none."""
        given = dict(response.headers)
        expected = accept_key(self._request.headers.get("Sec-WebSocket-Key", ""))
        upgraded = given.get(b"upgrade", b"").lower() == b"websocket"
        if not upgraded or given.get(b"sec-websocket-accept", b"").decode("latin-1") != expected:
            raise ExchangeError("the app answered the WebSocket handshake wrongly")

    async def _relay(self, stream: IOStream, wire: Wire, head: bytes) -> None:
        assert self._app is not None
        try:
            await relay(stream, wire, head + self._app.behind, self._be_active)
        finally:
            self._app = None

    def _be_active(self) -> None:
        self._active = time.monotonic()

    # Ends

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(self._guard(work))

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (asyncio.CancelledError, StreamClosedError):
            self._close_visitor()
        except (ClocheError, ExchangeError, WireClosed) as error:
            self._fail(error)
        except Exception:
            _LOG.exception("unexpected exception", extra={"request_id": self._request_id})
            self._fail(_defect())
        finally:
            if self._own_answer is None:
                self._release()

    def _fail(self, error: Exception) -> None:
        """Before the answer began it can be told; then only the cut tells."""
        if self._answering or self._stream is not None:
            self._close_visitor()
        else:
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        known = error if isinstance(error, ClocheError) else app_broke(cast("ExchangeError | WireClosed", error))
        self._own_answer = answer_of(known, self._request_id, as_page=self._request.as_page)
        self._reading = False
        if self._read.is_set() or self._request.headers.get("Expect") or not self._is_worth_reading():
            self._send_own()

    def _is_worth_reading(self) -> bool:
        """Else the connection ends behind the answer: what follows may be no body, but somebody's next request."""
        length = self._request.headers.get("Content-Length", "0")
        return self._is_clear and is_length(length) and int(length) <= DRAINED_BYTES

    def _send_own(self) -> None:
        answer = self._own_answer
        if answer is None or self._answering or self._released:
            return
        self._answering = True
        self._status = answer.status
        headers = httputil.HTTPHeaders()
        for name, value in answer.headers:
            headers.add(name, value)
        line = httputil.ResponseStartLine("HTTP/1.1", answer.status, http.HTTPStatus(answer.status).phrase)
        body = b"" if self._request.method == "HEAD" else answer.body
        self._connection.write_headers(line, headers, body or None)
        self._connection.finish()
        self._release()

    def _close_visitor(self) -> None:
        if self._stream is not None:
            self._stream.close()
        elif self._connection.stream is not None:
            self._connection.close()

    def _release(self) -> None:
        """Gives back everything; once."""
        if self._released:
            return
        self._released = True
        if self._app is not None:
            self._app.close()
        for timer in self._timers:
            timer.cancel()
        self._stack.close()
        self._gateway.open_calls.discard(self)
        _ACCESS.info(
            "request",
            extra={
                "request_id": self._request_id,
                "method": self._request.method,
                "route": "preview",
                "status": self._status or 499,
                "ms": round((time.monotonic() - self._began) * 1000, 2),
                "sandbox_id": self._host.sandbox_id,
            },
        )

    def _start_timers(self, seconds_left: float | None) -> None:
        loop = asyncio.get_running_loop()
        if seconds_left is not None:
            self._timers.append(loop.call_later(seconds_left, self._cut))
        self._timers.append(loop.call_later(IDLE_S, self._look_idle))

    def _look_idle(self) -> None:
        bound_s = SOCKET_IDLE_S if self._stream is not None else IDLE_S
        left = self._active + bound_s - time.monotonic()
        if left <= 0:
            self._cut()
        else:
            self._timers.append(asyncio.get_running_loop().call_later(left, self._look_idle))


def _defect() -> InternalError:
    return InternalError("something went wrong in the server")


def _is_short(headers: httputil.HTTPHeaders) -> bool:
    length = headers.get("Content-Length", "")
    return is_length(length) and 0 < int(length) <= SHORT_BYTES


def _text(response: h11.Response | h11.InformationalResponse) -> rules.Headers:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in response.headers.raw_items()]


def _status_line(response: h11.Response) -> httputil.ResponseStartLine:
    reason = response.reason.decode("latin-1")
    harmless = reason.isascii() and reason.isprintable() and len(reason) <= 128
    return httputil.ResponseStartLine("HTTP/1.1", response.status_code, reason if harmless else "")
