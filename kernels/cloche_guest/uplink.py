"""The uplink: the guest dials the server and then serves HTTP on the connection it dialled.

`IDLE` connections wait for requests. Whenever one is taken another is dialled, up to `MAX_CONNECTIONS` in all. A
connection that cannot be had is tried for again, for ever, with a growing pause: the server may be away for as long
as it likes.

Open connections to the host cannot be saved in a checkpoint, so `close_all` ends them on request. Whoever wakes up out
of that checkpoint goes on where this guest is: it dials, and is told who it is now.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, final

from pydantic import ValidationError
from tornado import httputil, iostream, web

from cloche.models.guest import PROTOCOL_VERSION, Hello, HelloReply, Identity
from cloche_guest.config import GuestConfig
from cloche_guest.http import HANG_UP_BYTES
from cloche_guest.identity import SandboxIdentity
from cloche_guest.rebirth import Rebirth
from cloche_guest.server import GuestServer

log = logging.getLogger(__name__)

IDLE: Final = 4
MAX_CONNECTIONS: Final = 256
HELLO_TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0

QUIET_S: Final = 0.02
"""After all uplinks were closed: the server needs this time to begin the checkpoint, and nothing is to be had anyway."""

EAGER_PAUSE_S: Final = 0.005
EAGER_TRIES: Final = 6000
"""Then it dials every `EAGER_PAUSE_S`: a copy dials 3 ms after its restore on average. A try costs some 50 us. After
30 s without success the server is away for another reason. Tries are counted and not seconds: the clock goes on while
the sandbox is in a checkpoint."""
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


class Pauses:
    """How long to wait before the next try. Pure."""

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._eager_tries = 0

    def succeeded(self) -> None:
        """The server is there."""
        self._pause_s = FIRST_PAUSE_S
        self._eager_tries = 0

    def be_eager(self) -> None:
        """It will be there soon, at a moment that matters."""
        self._eager_tries = EAGER_TRIES

    def next(self) -> float:
        """Seconds until the next try, after one that failed."""
        if self._eager_tries:
            self._eager_tries -= 1
            return EAGER_PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s


class Uplink:
    """Keeps the connections. `close_carried` ends those that were taken over by something else than HTTP."""

    def __init__(
        self, config: GuestConfig, identity: SandboxIdentity, rebirth: Rebirth, close_carried: Callable[[], None]
    ) -> None:
        self._path = config.uplink
        self._identity = identity
        self._rebirth = rebirth
        self._close_carried = close_carried
        self._token = config.token
        # The token is in /proc/1/environ, which anybody may read under gVisor; this is in nobody's but our memory.
        self._session = secrets.token_urlsafe(32)
        self._pauses = Pauses()
        self._quiet_until = 0.0
        self._streams: weakref.WeakSet[iostream.IOStream] = weakref.WeakSet()
        self._server: UplinkServer | None = None

    async def run(self, app: web.Application) -> None:
        """Serve `app` until cancelled: dial whenever a connection is wanted."""
        self._server = server = UplinkServer(app, max_body_size=HANG_UP_BYTES)
        try:
            while True:
                await asyncio.sleep(max(0.0, self._quiet_until - time.monotonic()))
                server.changed.clear()
                if server.idle >= IDLE or server.open >= MAX_CONNECTIONS:
                    await server.changed.wait()
                elif await self._dial(server):
                    self._pauses.succeeded()
                else:
                    await asyncio.sleep(self._pauses.next())
        finally:
            self._close_streams()
            await server.close_all_connections()

    def close_all(self, last: iostream.IOStream | None = None) -> None:
        """Close every connection to the server, whatever is under way on it, and dial none for `QUIET_S`. The server knows
        that none is left when it sees the end of ``last``: there may be others that it has let go of, or not heard of."""
        self._quiet_until = time.monotonic() + QUIET_S
        self._pauses.be_eager()
        self._close_streams(last)
        if self._server is not None:
            self._server.changed.set()

    def _close_streams(self, last: iostream.IOStream | None = None) -> None:
        self._close_carried()
        for stream in [stream for stream in self._streams if stream is not last]:
            stream.close()
        if last is not None:
            last.close()

    async def _dial(self, server: UplinkServer) -> bool:
        """True: it worked, and another may be dialled at once."""
        stream = iostream.IOStream(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self._streams.add(stream)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                reply = await self._say_hello(stream)
        except (OSError, iostream.StreamClosedError, iostream.UnsatisfiableReadError, TimeoutError, Refused) as error:
            stream.close()
            log.info("no uplink: %s", error)
            return False
        except BaseException:
            stream.close()
            raise
        assert reply.identity is not None
        if reply.reborn:
            stream.close()
            await self._become_another(reply.identity)
            return True
        if reply.identity.epoch == self._identity.epoch:  # else a claim came meanwhile, which this would take back
            self._identity.become(reply.identity)
        server.handle_stream(stream, "uplink")  # counts as idle from here on
        return True

    async def _become_another(self, identity: Identity) -> None:
        """All copies of the checkpoint have the old session: it is good for one more hello of this copy, no more."""
        self._close_streams()
        await self._rebirth.be_reborn(identity)
        self._token, self._session = self._session, secrets.token_urlsafe(32)

    async def _say_hello(self, stream: iostream.IOStream) -> HelloReply:
        """An answer with an identity."""
        await stream.connect(str(self._path))
        hello = self._hello()
        await stream.write(hello.model_dump_json().encode() + b"\n")
        line = await stream.read_until(b"\n", max_bytes=MAX_REPLY_BYTES)
        try:
            reply = HelloReply.model_validate_json(line)
        except ValidationError as error:
            raise Refused(f"the reply to hello is not understood: {error.error_count()} problems") from None
        if reply.identity is None:
            raise Refused(reply.refused or "refused without a reason")
        return reply

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            sandbox_id=self._identity.sandbox_id,
            epoch=self._identity.epoch,
            guest_epoch=self._identity.guest_epoch,
            token=self._token,
            session=self._session,
        )
