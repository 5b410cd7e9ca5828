"""Event streams and terminals over WebSocket: one message for one message, in both directions, at the pace of the slower
side. Of a terminal, every message passes unread: the guest is told what the client may do, and holds it to that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping
from contextlib import ExitStack
from typing import Any, Final

from tornado.websocket import WebSocketClosedError, WebSocketHandler

from cloche.errors import ClocheError, ConnectionFailed, SandboxNotRunning, Unauthenticated
from cloche.models import Role, SandboxState
from cloche.models.terminals import CLOSE_ASLEEP, CLOSE_NOT_ALLOWED
from cloche.terminal_frames import SUBPROTOCOL
from cloche_server.http._base import BaseHandler
from cloche_server.relay import GuestSocket, open_guest_socket, printable
from cloche_server.routing import Query, Route, Streams, invalid, parse_query
from cloche_server.sandboxes import Live
from cloche_server.uplink import WireClosed

MAX_TERMINAL_MESSAGE_BYTES: Final = 1024 * 1024
"""Frames of a terminal have 32 KiB; a guest that sends more than this is up to something."""

MAX_REASON_BYTES: Final = 123
"""Of a close frame, by RFC 6455."""

_SENDABLE: Final = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})


class SocketHandler(BaseHandler, WebSocketHandler):
    """Errors before the upgrade are plain HTTP errors; the guest is asked first, so its errors are among them."""

    is_stream: Final = True

    def prepare(self) -> None:
        self._guest: GuestSocket | None = None
        self._pump: asyncio.Task[None] | None = None
        self._until_closed = ExitStack()
        self._has_left = False

    def check_origin(self, _origin: str) -> bool:
        """`admit` did."""
        return True

    async def get(self, *_: Any, **__: Any) -> None:
        route = self.admit(upgrade=True)
        values = self.path_values()
        query = parse_query(self.request.query, route.query)
        if self.request.headers.get("Sec-WebSocket-Version") != "13" or not self._well_formed():
            raise invalid([("Sec-WebSocket-Version", "only a version 13 handshake is understood")])
        assert self.principal is not None
        if self.services.open_calls.closing:
            raise ConnectionFailed("the server is shutting down")
        self._sandbox_id = values["sandbox_id"]
        self._guest = await self.reach(
            route, self._sandbox_id, lambda live: self._open_guest(route, values, query, live)
        )
        try:
            await super().get()
        finally:
            self._guest.close()

    async def _open_guest(self, route: Route, values: Mapping[str, str], query: Query, live: Live) -> GuestSocket:
        assert self.principal is not None
        path = route.guest_path.format_map({**values})
        pool, limit = live.uplink.pool, self.services.settings.max_answer_bytes
        if not self._is_terminal:
            return await open_guest_socket(pool, path + _suffix(query), route.bound_s, limit)
        access = "read" if self.principal.role is Role.VIEWER else "write"
        return await open_guest_socket(
            pool, f"{path}?access={access}", route.bound_s, MAX_TERMINAL_MESSAGE_BYTES, SUBPROTOCOL
        )

    @property
    def _is_terminal(self) -> bool:
        return self.route is not None and self.route.streams is Streams.SOCKET

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return SUBPROTOCOL if self._is_terminal and SUBPROTOCOL in subprotocols else None

    def _well_formed(self) -> bool:
        headers = self.request.headers
        tokens = {token.strip().lower() for token in headers.get("Connection", "").split(",")}
        return "upgrade" in tokens and bool(headers.get("Sec-WebSocket-Key"))

    def open(self, *_: str, **__: str) -> None:
        if self._has_left:  # while the guest was asked; `on_close` does not come again
            return
        self.set_nodelay(True)
        self.services.open_calls.add(self)
        self._pump = asyncio.create_task(self._pump_events())
        if self.principal is not None and self.principal.share_id is not None:
            self._until_closed.enter_context(self.services.shares.watching(self.principal.share_id, self))

    async def _pump_events(self) -> None:
        assert self._guest is not None
        try:
            async for message in self._guest.messages():
                written = self.write_message(message, binary=isinstance(message, bytes))
                if self._is_full:  # a wait that is over at once costs two turns of the loop
                    await written
            self._close(self._guest.close_code, printable(self._guest.close_reason))
        except ClocheError as error:
            why = self.why_cut(error, self._sandbox_id)
            self._fail(CLOSE_ASLEEP if _sleeps(why) else 1011, why)
        except WebSocketClosedError:
            pass

    @property
    def _is_full(self) -> bool:
        """The last message waits for a client that reads slowly, or was lost with the connection."""
        stream = None if self.ws_connection is None else self.ws_connection.stream
        return stream is None or stream.closed() or stream.writing()

    def on_message(self, message: str | bytes) -> Awaitable[None] | None:
        """What it returns is awaited by Tornado before it reads the next one: a guest that does not read slows the client
        down. No coroutine itself: that would be two more turns of the loop for every key."""
        assert self._guest is not None
        assert self.principal is not None
        refused = self.principal.role is Role.VIEWER or not isinstance(message, str)
        if refused and not self._is_terminal:
            self._close(1008, '{"code":"forbidden"}')
            return None
        try:
            return self._guest.send(message)
        except WireClosed:
            return None  # the pump hears of it, too, and says why

    def on_close(self) -> None:
        self._has_left = True
        if self._pump is not None:
            self._pump.cancel()
        if self._guest is not None:
            self._guest.close()
        self._until_closed.close()
        self.services.open_calls.discard(self)
        self.log_access(101)

    def on_finish(self) -> None:
        """Tornado finishes a WebSocket's request as it begins; the line is written at its end."""
        if self.get_status() != 101:
            super().on_finish()

    def stop(self) -> None:
        """The server ends; see `OpenCalls`. 1012 is "service restart"."""
        self._fail(1012, ConnectionFailed("the server is shutting down"))

    def end(self, reason: str) -> None:
        """The link by which this client came is no longer good; see `ShareService`."""
        self._fail(CLOSE_NOT_ALLOWED, Unauthenticated(reason))

    def _fail(self, code: int, error: ClocheError) -> None:
        self.error_code = error.code
        self._close(code, json.dumps({"code": error.code, "message": error.message[:60]}))

    def _close(self, code: int, reason: str) -> None:
        allowed = code in _SENDABLE or 3000 <= code < 5000
        self.close(code if allowed else 1011, reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore"))


def _sleeps(why: ClocheError) -> bool:
    """One that is rolled back runs again by itself: who comes back is told, once it does, that this is another life."""
    return isinstance(why, SandboxNotRunning) and why.details.get("state") != SandboxState.RESTORING


def _suffix(query: Query) -> str:
    text = query.encode()
    return f"?{text}" if text else ""
