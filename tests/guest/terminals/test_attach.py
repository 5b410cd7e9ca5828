"""The WebSocket of an attached viewer, over a connection that takes little at a time. Its terminal is a script."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import websockets
from tornado import httpserver, iostream, web

from cloche._terminal_stream import TerminalStream
from cloche.terminal_frames import SUBPROTOCOL
from cloche_guest.handlers.terminals import AttachHandler

MESSAGES = [b"%04d" % number + bytes(32 * 1024) for number in range(64)]


class ScriptedTerminal:
    """Has `MESSAGES` to send, then is over. As the real one it says so from within the pull that finds nothing more."""

    def __init__(self) -> None:
        self.left = list(MESSAGES)
        self.over: tuple[int, str] | None = None
        self.disconnected = asyncio.Event()

    def get(self, _terminal_id: str) -> ScriptedTerminal:
        return self

    def connect(self, wake: Callable[[], None]) -> int:
        self.wake = wake
        return 1

    def attach(self, *_: Any, **__: Any) -> None:
        self.wake()

    def pull(self, _key: int) -> list[bytes]:
        messages, self.left = self.left[:2], self.left[2:]
        if not self.left:
            self.over = (1000, "the program ended")
            self.wake()
        return messages

    def closing(self, _key: int) -> tuple[int, str] | None:
        return self.over

    def disconnect(self, _key: int) -> None:
        self.disconnected.set()


@asynccontextmanager
async def viewer(terminal: ScriptedTerminal) -> AsyncIterator[websockets.ClientConnection]:
    """Attached over a connection that holds one message at most."""
    theirs, ours = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    app = web.Application([(r"/(.*)", AttachHandler, {"terminals": terminal})], log_function=lambda _: None)
    server = httpserver.HTTPServer(app)
    server.handle_stream(iostream.IOStream(theirs), "viewer")
    connecting = websockets.connect(
        "ws://guest/term",
        sock=ours,
        subprotocols=[SUBPROTOCOL],
        compression=None,
        max_queue=1,
        ping_interval=None,  # type: ignore[list-item]
    )
    async with asyncio.timeout(60), connecting as client:
        await client.send(TerminalStream("viewer-0001").hello())
        yield client
    await server.close_all_connections()


async def stuck(terminal: ScriptedTerminal) -> int:
    """How many messages are left when no more goes out: all of it happens in this loop, and had many turns in a row."""
    left, quiet_turns = len(terminal.left), 0
    while quiet_turns < 20:
        await asyncio.sleep(0.005)
        quiet_turns = quiet_turns + 1 if left == len(terminal.left) else 0
        left = len(terminal.left)
    return left


async def test_a_viewer_that_reads_late_gets_everything_in_order_and_then_the_end() -> None:
    terminal = ScriptedTerminal()
    async with viewer(terminal) as client:
        assert await stuck(terminal) > 0
        assert [await client.recv() for _ in MESSAGES] == MESSAGES
        with pytest.raises(websockets.ConnectionClosedOK) as closed:
            await client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.reason == "the program ended"
        await terminal.disconnected.wait()


async def test_a_viewer_that_is_cut_off_while_it_is_behind_leaves_nothing_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    terminal = ScriptedTerminal()
    async with viewer(terminal) as client:
        left = await stuck(terminal)
        client.transport.abort()
        await terminal.disconnected.wait()
        terminal.wake()
        assert len(terminal.left) == left > 0
    assert not caplog.records
