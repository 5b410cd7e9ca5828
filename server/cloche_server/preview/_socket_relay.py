"""A WebSocket behind its handshake: two streams of bytes, carried at the pace of the slower side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tornado.iostream import IOStream

from cloche_server.uplink import Wire

PART_BYTES: Final = 65_536


async def relay(visitor: IOStream, app: Wire, first: bytes, active: Callable[[], None]) -> None:
    """Until one side has ended; what it said before is delivered. ``first`` goes to the visitor before all else,
    ``active`` is called for whatever comes."""
    ways: list[asyncio.Task[None]] = []
    try:
        await visitor.write(first)
        ways += [asyncio.create_task(_up(visitor, app, active)), asyncio.create_task(_down(visitor, app, active))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        visitor.close()
        app.close_gently()


async def _up(visitor: IOStream, app: Wire, active: Callable[[], None]) -> None:
    while True:
        data = await visitor.read_bytes(PART_BYTES, partial=True)
        active()
        await app.write(data)


async def _down(visitor: IOStream, app: Wire, active: Callable[[], None]) -> None:
    while data := await app.read():
        active()
        await visitor.write(data)
