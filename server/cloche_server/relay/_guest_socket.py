"""A WebSocket to a guest, over a dialled connection.

The handshake is an ordinary exchange (so a refusal is an ordinary error); the frames are `websockets`' sans-I/O
protocol, which checks masks, lengths and close codes.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

import h11
from websockets.exceptions import InvalidState, ProtocolError
from websockets.frames import Frame, Opcode
from websockets.protocol import CLIENT, OPEN, Protocol
from websockets.utils import accept_key

from cloche.errors import GuestFault
from cloche_server.relay._exchange import Exchange
from cloche_server.relay._guest import GuestAnswer, answer_error, as_our_errors, lost
from cloche_server.uplink import Wire, WireClosed, WirePool

PING_AFTER_S: Final = 20.0
LOST_AFTER_PINGS: Final = 3
"""A guest that answers no ping for this many periods of `PING_AFTER_S` is lost."""


class GuestSocket:
    """Open. One task reads `messages`, another may `send`. Close it."""

    def __init__(self, wire: Wire, first: bytes, max_bytes: int) -> None:
        self._wire = wire
        wire.endless = True
        self._protocol = Protocol(CLIENT, state=OPEN, max_size=max_bytes)
        self.close_code = 1006
        self.close_reason = ""
        if first:
            self._protocol.receive_data(first)

    async def messages(self) -> AsyncIterator[str | bytes]:
        """Messages, text or binary, until the guest closes; then `close_code` and `close_reason` are set.

        `SandboxUnreachable` when it goes away without closing or answers no pings, `GuestFault` when it breaks the
        protocol.
        """
        parts: list[bytes] = []
        is_text = True
        try:
            while True:
                for event in self._protocol.events_received():
                    assert isinstance(event, Frame)
                    if event.opcode in {Opcode.TEXT, Opcode.BINARY, Opcode.CONT}:
                        is_text = is_text if event.opcode is Opcode.CONT else event.opcode is Opcode.TEXT
                        parts.append(bytes(event.data))
                        if event.fin:
                            message = b"".join(parts)
                            parts.clear()
                            yield message.decode() if is_text else message
                if self._flush():  # a guest that sends pings, and does not read the answers, is not read either
                    await self._wire.room()
                if self._ended():
                    return
                await self._receive()
        except WireClosed as error:
            raise lost(PING_AFTER_S * LOST_AFTER_PINGS) from error
        except UnicodeDecodeError as error:
            raise GuestFault("the guest sent a text message that is not text") from error

    def _ended(self) -> bool:
        protocol = self._protocol
        if protocol.close_rcvd is not None:
            self.close_code, self.close_reason = protocol.close_rcvd.code, protocol.close_rcvd.reason
            return True
        if protocol.parser_exc is not None:
            raise GuestFault(f"the guest broke the WebSocket protocol: {protocol.parser_exc}")
        if self._wire.eof and not self._wire.unread:
            raise WireClosed("the guest went away")
        return False

    async def _receive(self) -> None:
        for _ in range(LOST_AFTER_PINGS):
            try:
                async with asyncio.timeout(PING_AFTER_S):
                    data = await self._wire.read()
            except TimeoutError:
                self._protocol.send_ping(b"")
                self._flush()
                continue
            if not data:  # a guest that ends it says so in a close frame; this one is gone, or was cut off
                raise WireClosed("the guest went away")
            self._protocol.receive_data(data)
            return
        raise WireClosed("no answer to pings")

    def send(self, message: str | bytes) -> Coroutine[Any, Any, None] | None:
        """At once. What it returns, if anything, is to be awaited before the next one: the guest is slow.

        `WireClosed` when the guest is gone.
        """
        try:
            if isinstance(message, str):
                self._protocol.send_text(message.encode())
            else:
                self._protocol.send_binary(message)
        except (InvalidState, ProtocolError) as error:
            raise WireClosed("the connection is closing") from error
        self._flush()
        return self._wire.room() if self._wire.is_full else None

    def _flush(self) -> bool:
        """Whether there was something."""
        data = b"".join(self._protocol.data_to_send())
        if data:
            self._wire.write_now(data)
        return bool(data)

    def close(self) -> None:
        """At once. The guest sees the end of the connection; what runs goes on."""
        self._wire.close()


async def open_guest_socket(
    pool: WirePool, path: str, bound_s: float, max_bytes: int, subprotocol: str | None = None
) -> GuestSocket:
    """Raises what `call_guest` raises."""
    exchange = Exchange(await pool.take())
    try:
        await _shake_hands(exchange, path, bound_s, pool, max_bytes, subprotocol)
    except BaseException:
        exchange.close()
        raise
    return GuestSocket(exchange.wire, exchange.behind, max_bytes)


async def _shake_hands(
    exchange: Exchange, path: str, bound_s: float, pool: WirePool, max_bytes: int, subprotocol: str | None
) -> None:
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    upgrade = [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    secret = [("Sec-WebSocket-Version", "13"), ("Sec-WebSocket-Key", key)]
    if subprotocol is not None:
        secret.append(("Sec-WebSocket-Protocol", subprotocol))
    with as_our_errors(bound_s):
        async with asyncio.timeout(bound_s):
            await exchange.send("GET", path, [*upgrade, *secret], None)
            response = await exchange.head()
    if isinstance(response, h11.Response):
        raise await answer_error(GuestAnswer(exchange, response, pool, max_bytes))
    _check_accept(response, key)


def _check_accept(response: h11.InformationalResponse, key: str) -> None:
    headers = dict(response.headers)
    if headers.get(b"sec-websocket-accept", b"").decode("latin-1") != accept_key(key):
        raise GuestFault("the guest answered the WebSocket handshake wrongly")
