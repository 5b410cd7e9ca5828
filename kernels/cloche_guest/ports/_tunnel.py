"""The way in: bytes between one connection of the server and one port of the sandbox' own loopback.

Two ends, each the other's peer. What one receives the other sends; an end that cannot send stops the other from
receiving (back-pressure), and the end of one direction is passed on without ending the other (half-close). A
connection that breaks takes its peer with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from typing import Final, cast

from cloche.errors import PortClosed

CONNECT_BOUND_S: Final = 3.0
"""Loopback answers at once; this much only passes when the program's queue of connections is full."""

HIGH_WATER_BYTES: Final = 256 * 1024
HANG_UP_LOOK_S: Final = 1.0

_HOSTS: Final = (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6))
"""Programs listen on one of them or on both: `localhost` of Node is ::1."""


async def connect_app(port: int, bound_s: float = CONNECT_BOUND_S) -> socket.socket:
    """A connection to whatever listens on ``port``.

    Raises:
        PortClosed: nothing does, or it takes no connection within ``bound_s``.
    """
    reason = "refused"
    try:
        async with asyncio.timeout(bound_s):
            for host, family in _HOSTS:
                made = await _connect(host, family, port)
                if made is not None:
                    return made
    except TimeoutError:
        reason = "timeout"
    why = "nothing listens on" if reason == "refused" else f"nothing took a connection within {bound_s:g} s on"
    raise PortClosed(
        f"{why} port {port} of the sandbox",
        hint="start the program, or look at the ports that are open",
        details={"port": port, "reason": reason},
    )


async def _connect(host: str, family: socket.AddressFamily, port: int) -> socket.socket | None:
    try:
        made = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError:  # a kernel without IPv6
        return None
    try:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, (host, port))
    except OSError:
        made.close()
        return None
    except BaseException:
        made.close()
        raise
    return made


class _End(asyncio.Protocol):
    """One of the two."""

    peer: _End

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.ended = asyncio.get_running_loop().create_future()
        self.eof = asyncio.get_running_loop().create_future()
        self.received_eof = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self.peer.transport is not None:
            self.peer.transport.write(data)

    def pause_writing(self) -> None:
        self.peer.let_read(False)

    def resume_writing(self) -> None:
        self.peer.let_read(True)

    def let_read(self, allowed: bool) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if allowed:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def eof_received(self) -> bool:
        self.received_eof = True
        if not self.eof.done():  # it is told again after a pause
            self.eof.set_result(None)
        other = self.peer.transport
        if self.peer.received_eof:
            self.close()
            self.peer.close()
        elif other is not None and not other.is_closing():
            with contextlib.suppress(OSError):
                other.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self.peer.close()
        else:
            self.peer.abort()
        if not self.ended.done():
            self.ended.set_result(None)

    def close(self) -> None:
        """After what is still to be sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    @property
    def has_unsent(self) -> bool:
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    def hung_up(self) -> bool:
        """Both directions are over for the other side. After an end of file this tells a close from a half-close."""
        made: socket.socket | None = self.transport.get_extra_info("socket") if self.transport is not None else None
        if made is None or made.fileno() < 0:
            return False
        looking = select.poll()
        looking.register(made.fileno(), 0)
        return any(event & (select.POLLHUP | select.POLLERR) for _, event in looking.poll(0))


async def relay(outer: socket.socket, inner: socket.socket, first: bytes) -> None:
    """Until both are closed; owns both. ``first`` goes to ``outer`` before anything else."""
    loop = asyncio.get_running_loop()
    server, app = _End(), _End()
    server.peer, app.peer = app, server
    try:
        await loop.create_connection(lambda: server, sock=outer)
        await loop.create_connection(lambda: app, sock=inner)
        assert server.transport is not None
        server.transport.write(first)
        server.let_read(True)
        app.let_read(True)
        await _ended(server, app)
    finally:
        server.abort()
        app.abort()
        outer.close()
        inner.close()


async def _ended(server: _End, app: _End) -> None:
    """A server that has hung up gets no more of an app that goes on sending nothing: the app's side is closed, too, once it
    has taken what the server said before."""
    both = asyncio.gather(server.ended, app.ended)
    await asyncio.wait({both, server.eof}, return_when=asyncio.FIRST_COMPLETED)
    while not both.done():
        await asyncio.wait({both}, timeout=HANG_UP_LOOK_S)
        if not both.done() and server.hung_up() and not app.has_unsent:
            app.abort()
            server.abort()
