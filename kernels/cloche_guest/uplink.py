"""The uplink: the guest dials the server and then serves HTTP on the connection it dialled.

`IDLE` connections wait for requests. Whenever one is taken another is dialled, up to `MAX_CONNECTIONS` in all. A
connection that cannot be had is tried for again, for ever, with a growing pause: the server may be away for as long
as it likes.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

from pydantic import ValidationError
from tornado import httputil, iostream, web

from cloche.models.guest import PROTOCOL_VERSION, Hello, HelloReply, Identity
from cloche_guest.app import GuestServer
from cloche_guest.config import GuestConfig
from cloche_guest.http import HANG_UP_BYTES
from cloche_guest.identity import SandboxIdentity

log = logging.getLogger(__name__)

IDLE: Final = 4
MAX_CONNECTIONS: Final = 256
HELLO_TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
MAX_REPLY_BYTES: Final = 16 * 1024 * 1024
"""The reply carries the sandbox's env; this is far over what a program can be started with."""


class Refused(Exception):
    """The server does not want this connection, or speaks another language."""


class UplinkServer(GuestServer):
    """Knows which of its connections wait for a request."""

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        super().initialize(*args, **kwargs)
        self.changed = asyncio.Event()
        self._busy: set[object] = set()

    @property
    def idle(self) -> int:
        """Connections that wait for a request."""
        return self.open - len(self._busy)

    @property
    def open(self) -> int:
        """Connections in all."""
        return len(self._connections)

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> httputil.HTTPMessageDelegate:
        """Tornado calls this when it begins to wait for a request."""
        self._busy.discard(server_conn)
        return _TakenNotice(super().start_request(server_conn, request_conn), lambda: self._taken(server_conn))

    def on_close(self, server_conn: object) -> None:
        super().on_close(server_conn)
        self._busy.discard(server_conn)
        self.changed.set()

    def _taken(self, server_conn: object) -> None:
        self._busy.add(server_conn)
        self.changed.set()


@final
class _TakenNotice(httputil.HTTPMessageDelegate):
    """Passes everything on, and tells when a request has come."""

    def __init__(self, inner: httputil.HTTPMessageDelegate, taken: Callable[[], None]) -> None:
        self._inner = inner
        self._taken = taken

    def headers_received(
        self, start_line: httputil.RequestStartLine | httputil.ResponseStartLine, headers: httputil.HTTPHeaders
    ) -> Any:
        self._taken()
        return self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Any:
        return self._inner.data_received(chunk)

    def finish(self) -> None:
        self._inner.finish()

    def on_connection_close(self) -> None:
        self._inner.on_connection_close()


class Uplink:
    """Keeps the connections; `run` until cancelled."""

    def __init__(self, app: web.Application, config: GuestConfig, identity: SandboxIdentity) -> None:
        self._config = config
        self._identity = identity
        # The token is in /proc/1/environ, which anybody may read under gVisor; this is in nobody's but our memory.
        self._session = secrets.token_urlsafe(32)
        self.server = UplinkServer(app, max_body_size=HANG_UP_BYTES)

    async def run(self) -> None:
        """Dial whenever a connection is wanted. One that fails makes the next wait; success ends the waiting."""
        pause_s = FIRST_PAUSE_S
        while True:
            self.server.changed.clear()
            if self.server.idle >= IDLE or self.server.open >= MAX_CONNECTIONS:
                await self.server.changed.wait()
            elif await self._dial():
                pause_s = FIRST_PAUSE_S
            else:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _dial(self) -> bool:
        stream = iostream.IOStream(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                identity = await self._say_hello(stream, self._config.uplink)
        except (OSError, iostream.StreamClosedError, iostream.UnsatisfiableReadError, TimeoutError, Refused) as error:
            stream.close()
            log.info("no uplink: %s", error)
            return False
        except BaseException:
            stream.close()
            raise
        self._identity.become(identity)
        self.server.handle_stream(stream, "uplink")  # counts as idle from here on
        return True

    async def _say_hello(self, stream: iostream.IOStream, path: Path) -> Identity:
        await stream.connect(str(path))
        await stream.write(self._hello().model_dump_json().encode() + b"\n")
        line = await stream.read_until(b"\n", max_bytes=MAX_REPLY_BYTES)
        try:
            reply = HelloReply.model_validate_json(line)
        except ValidationError as error:
            raise Refused(f"the reply to hello is not understood: {error.error_count()} problems") from None
        if reply.identity is None:
            raise Refused(reply.refused or "refused without a reason")
        return reply.identity

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            sandbox_id=self._config.sandbox_id,
            epoch=self._config.epoch,
            guest_epoch=self._config.guest_epoch,
            token=self._config.token,
            session=self._session,
        )
