"""A WebSocket to a guest that is no friend."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing

import pytest

from cloche_server.relay._guest_socket import GuestSocket
from cloche_server.uplink import Wire
from cloche_server.uplink._wire import Traffic

PING = b"\x89\x7d" + b"p" * 125
PONG_BYTES = 131
"""Of the answer, which is masked."""

ENOUGH_BYTES = 16 * 1024 * 1024
"""More than sockets and both buffers hold."""


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    server, guest = socket.socketpair()
    for end in (server, guest):
        end.setblocking(False)
    with closing(guest):
        yield server, guest


@asynccontextmanager
async def reading(server: socket.socket) -> AsyncIterator[Wire]:
    """The server reads messages of a guest that sends none."""
    wire = Wire(lambda _wire: None, Traffic())
    await asyncio.get_running_loop().create_unix_connection(lambda: wire, sock=server)
    guest_socket = GuestSocket(wire, b"", 1024)

    async def read() -> None:
        async for _ in guest_socket.messages():
            raise AssertionError("there is no message")

    task = asyncio.create_task(read())
    try:
        yield wire
    finally:
        task.cancel()
        await asyncio.wait({task})
        guest_socket.close()


async def send_pings(guest: socket.socket) -> int:
    """Until nobody takes them any more. Returns the bytes sent.

    Both ends are in this loop: who would take some has done so after a few of its turns, however long each of them took.
    """
    sent = idle_turns = 0
    while sent < ENOUGH_BYTES and idle_turns < 100:
        try:
            sent += guest.send((PING * 501)[sent % len(PING) :])
            idle_turns = 0
        except BlockingIOError:
            idle_turns += 1
            await asyncio.sleep(0.002)
    return sent


async def test_a_guest_that_reads_no_answers_to_its_pings_is_not_read(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """All answers were kept in the server's memory."""
    server, guest = ends
    async with reading(server) as wire:
        assert await send_pings(guest) < ENOUGH_BYTES
        assert wire.is_full
        waiting = [asyncio.create_task(wire.room()) for _ in range(2)]
        async with asyncio.timeout(30):
            while not all(one.done() for one in waiting):
                await asyncio.get_running_loop().sock_recv(guest, 65_536)


async def test_a_guest_that_reads_gets_every_answer(ends: tuple[socket.socket, socket.socket]) -> None:
    server, guest = ends
    loop, count = asyncio.get_running_loop(), 20_000
    async with reading(server):
        sending = asyncio.create_task(loop.sock_sendall(guest, PING * count))
        received = 0
        async with asyncio.timeout(60):
            while received < count * PONG_BYTES:
                received += len(await loop.sock_recv(guest, 65_536))
        await sending
