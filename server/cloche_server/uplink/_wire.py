"""One dialled connection: bytes in, bytes out, with back-pressure both ways.

States: *talking* (somebody reads) and *parked* (idle in a pool). A parked guest has nothing to say: a byte from it ends
the connection, so a late or doubled answer can never be taken for the answer to the next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

HIGH_WATER_BYTES: Final = 256 * 1024
"""Unread bytes at which the guest is made to wait, and unsent bytes at which our writers are."""


class WireClosed(ConnectionError):
    """The other side is gone."""


@dataclass(slots=True)
class Traffic:
    """Bytes from and to one sandbox, and its open connections. All its wires count here."""

    received: int = 0
    sent: int = 0
    connections: int = 0


class Wire(asyncio.Protocol):
    """Owned by one task at a time. Whoever has it closes it or gives it back to its pool."""

    def __init__(self, connected: Callable[[Wire], None], traffic: Traffic) -> None:
        self._connected = connected
        self._traffic = traffic
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._reading_paused = False
        self._writing_paused = False
        self._gone: Callable[[Wire], None] | None = None
        self._lost: Callable[[Wire], None] | None = None
        self.closed = False
        self.eof = False
        self.endless = False
        """It carries a stream: nobody waits for its end."""
        self.looks = False
        """It carries a call that does no work in the sandbox."""

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._traffic.connections += 1
        self._connected(self)

    def data_received(self, data: bytes) -> None:
        self._traffic.received += len(data)
        if self._gone is not None:
            self.close()
            return
        self._buffer += data
        if len(self._buffer) >= HIGH_WATER_BYTES and not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        self.eof = True
        _wake(self._reader)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = self.eof = True
        self._traffic.connections -= 1
        _wake(self._reader)
        _wake(self._writer)
        for told in (self._gone, self._lost):
            if told is not None:
                told(self)

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        _wake(self._writer)

    # What owners call

    @property
    def unread(self) -> bool:
        return bool(self._buffer)

    def park(self, gone: Callable[[Wire], None]) -> None:
        """From now on ``gone`` is called once when the connection ends."""
        self._gone = gone

    def unpark(self) -> None:
        self._gone = None

    def lend(self, lost: Callable[[Wire], None] | None) -> None:
        """To a call; ``lost`` is called once when the connection ends meanwhile. None: it is back."""
        self._lost = lost

    async def read(self) -> bytes:
        """Whatever has arrived, at least one byte; b"" at the end."""
        while not self._buffer and not self.eof:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        data = bytes(self._buffer)
        self._buffer.clear()
        if self._reading_paused and self._transport is not None and not self.closed:
            self._reading_paused = False
            self._transport.resume_reading()
        return data

    async def read_line(self, max_bytes: int) -> bytes:
        """One line without its newline; the rest stays unread. `WireClosed` at the end, `ValueError` when it is too long."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > max_bytes:
                break
            if self.eof:
                raise WireClosed("the connection ended before the end of the line")
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        if not 0 <= end <= max_bytes:
            raise ValueError(f"line longer than {max_bytes} bytes")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    async def write(self, data: bytes) -> None:
        """Returns when most of it is out of our memory. `WireClosed` when the connection is gone."""
        self.write_now(data)
        await self.room()

    def write_now(self, data: bytes) -> None:
        """Without waiting: whoever writes much looks at `is_full`. `WireClosed` when the connection is gone."""
        if self.closed or self._transport is None or self._transport.is_closing():
            raise WireClosed("the guest closed the connection")
        self._traffic.sent += len(data)
        self._transport.write(data)

    @property
    def is_full(self) -> bool:
        """The guest does not read as fast as we write."""
        return self._writing_paused and not self.closed

    async def room(self) -> None:
        """Returns when it is no longer full, or gone. Several may wait."""
        while self.is_full:
            if self._writer is None or self._writer.done():
                self._writer = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._writer)

    def close_gently(self, bound_s: float = 5.0) -> None:
        """After what is still to be sent, or at once when the guest does not take it within ``bound_s``."""
        if self._transport is not None and not self.closed:
            self._transport.close()
            asyncio.get_running_loop().call_later(bound_s, self.close)

    def close(self) -> None:
        """At once; unsent bytes are dropped. Idempotent."""
        if self._transport is not None and not self.closed:
            self._transport.abort()


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
