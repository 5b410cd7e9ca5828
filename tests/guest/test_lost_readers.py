"""Readers of events that are cut off: of what was under way for them nothing is said."""

from __future__ import annotations

import asyncio
import gc
import json
import socket

import pytest
import websockets
from tornado import httpserver, iostream, web

from cloche.journal import Journal
from cloche.journal_feed import JournalFeed
from cloche_guest.streams import StreamHandler


class OneFeed(StreamHandler):
    closed: asyncio.Event

    def initialize(self, feed: JournalFeed) -> None:
        self.feed = feed

    async def open_feed(self, *_: str) -> JournalFeed:
        return self.feed

    def on_close(self) -> None:
        super().on_close()
        self.closed.set()


async def test_a_reader_that_is_cut_off_while_it_is_behind(caplog: pytest.LogCaptureFixture) -> None:
    """There was a traceback in the log for each event on its way."""
    feed = JournalFeed(Journal("e1", max_bytes=8_000_000))
    for _ in range(64):
        feed.append("result", json.dumps("x" * 32_000).encode())
    theirs, ours = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    OneFeed.closed = asyncio.Event()
    server = httpserver.HTTPServer(web.Application([(r"/", OneFeed, {"feed": feed})], log_function=lambda _: None))
    server.handle_stream(iostream.IOStream(theirs), "reader")
    connecting = websockets.connect("ws://guest/", sock=ours, compression=None, max_queue=1, ping_interval=None)  # type: ignore[list-item]
    async with asyncio.timeout(60), connecting as client:
        assert json.loads(await client.recv())["type"] == "result"
        client.transport.abort()
        await OneFeed.closed.wait()
    await server.close_all_connections()
    await asyncio.sleep(0)
    gc.collect()
    assert not caplog.records
