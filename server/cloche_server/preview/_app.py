"""Connections to apps in sandboxes: a tunnel through the guest, and HTTP/1.1 over it.

A tunnel is an uplink connection that became one to a port (`Upgrade: cloche-tcp`). Tunnels whose answer is complete are
kept for a moment and used again for the same port of the same sandbox: a page of a development server is hundreds of
requests. They are never used for another port.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import h11

from cloche.errors import GuestFault
from cloche_server.relay import Exchange, ExchangeError, GuestAnswer, answer_error, as_our_errors
from cloche_server.uplink import Wire, WireClosed, WirePool

MAX_HEADER_BYTES: Final = 64 * 1024
"""Of an app's answer. What servers send in practice stays below 32 KiB."""

TUNNEL_BOUND_S: Final = 10.0
"""The guest gives an app 3 s to take a connection; the rest is for a busy machine."""

MAX_KEPT: Final = 8
KEPT_S: Final = 4.0
"""Below the 5 s after which common servers (Node, uvicorn) close an idle connection."""


async def open_tunnel(pool: WirePool, port: int) -> Wire:
    """A byte stream to ``port`` of the sandbox' loopback. `PortClosed` when nothing listens; else as `call_guest`."""
    exchange = Exchange(await pool.take())
    try:
        with as_our_errors(TUNNEL_BOUND_S):
            async with asyncio.timeout(TUNNEL_BOUND_S):
                upgrade = [("Connection", "Upgrade"), ("Upgrade", "cloche-tcp")]
                await exchange.send("POST", f"/v1/ports/{port}/connect", upgrade, None)
                response = await exchange.head()
        if isinstance(response, h11.Response):
            raise await answer_error(GuestAnswer(exchange, response, pool, MAX_HEADER_BYTES))
        if exchange.behind:
            raise GuestFault("the app spoke before it was asked")
    except BaseException:
        exchange.close()
        raise
    exchange.wire.endless = True
    return exchange.wire


@dataclass(frozen=True, slots=True)
class AppAddress:
    """One port of one life of a sandbox."""

    sandbox_id: str
    epoch: str
    port: int


class Tunnels:
    """Keeps idle tunnels. Call `close` at the end."""

    def __init__(self) -> None:
        self._kept: defaultdict[AppAddress, list[Wire]] = defaultdict(list)

    def take(self, address: AppAddress) -> Wire | None:
        """One that was open a moment ago; it may have closed since."""
        kept = self._kept.get(address, [])
        while kept:
            wire = kept.pop()
            wire.unpark()
            if not (wire.closed or wire.eof or wire.unread):
                return wire
            wire.close()
        return None

    def give_back(self, address: AppAddress, wire: Wire) -> None:
        """After a complete answer."""
        kept = self._kept[address]
        if len(kept) >= MAX_KEPT or wire.closed or wire.eof or wire.unread:
            wire.close()
            return
        wire.park(self._forgetter(address))
        kept.append(wire)
        asyncio.get_running_loop().call_later(KEPT_S, self._expire, address, wire)

    def _forgetter(self, address: AppAddress) -> Callable[[Wire], None]:
        def forget(wire: Wire) -> None:
            kept = self._kept.get(address, [])
            if wire in kept:
                kept.remove(wire)
            if not kept:
                self._kept.pop(address, None)

        return forget

    def _expire(self, address: AppAddress, wire: Wire) -> None:
        if wire in self._kept.get(address, []):
            self._forgetter(address)(wire)
            wire.unpark()
            wire.close()

    def close(self) -> None:
        for kept in self._kept.values():
            for wire in kept:
                wire.unpark()
                wire.close()
        self._kept.clear()


def app_broke(error: ExchangeError | WireClosed) -> GuestFault:
    """What the visitor is told of an app that does not speak HTTP."""
    if isinstance(error, WireClosed):
        return GuestFault("the app closed the connection without an answer")
    return GuestFault("the app's answer is no HTTP that may be passed on")
