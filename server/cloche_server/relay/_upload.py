"""Bodies of any size on their way to a guest: part by part, no faster than it takes them."""

from __future__ import annotations

import asyncio
from typing import Final

from cloche_server.relay._exchange import Exchange
from cloche_server.relay._guest import (
    GuestAnswer,
    GuestCall,
    as_our_errors,
    closing_on_error,
    good_answer,
    request_headers,
)
from cloche_server.uplink import WireClosed, WirePool

SILENCE_S: Final = 60.0
"""For a guest that takes no more; a disk that is so slow is as good as gone."""


class GuestUpload:
    """`open`, then `send` parts, then `answer`. Close it when it does not come to that."""

    def __init__(self, exchange: Exchange, call: GuestCall, pool: WirePool) -> None:
        self._exchange = exchange
        self._call = call
        self._pool = pool
        self._ended_early = False

    @classmethod
    async def open(cls, pool: WirePool, call: GuestCall, length: int | None) -> GuestUpload:
        """Raises what `call_guest` raises."""
        exchange = Exchange(await pool.take())
        with as_our_errors(SILENCE_S), closing_on_error(exchange):
            framing = ("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))
            await exchange.begin(call.method, call.path, [("Host", "guest"), framing, *request_headers(call)])
        return cls(exchange, call, pool)

    async def send(self, data: bytes) -> bool:
        """False: the guest has answered before all was there, and wants no more of it."""
        if self._exchange.wire.unread or self._exchange.wire.eof:
            self._ended_early = True
            return False
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._exchange.add(data)
        except WireClosed:  # its answer may have come before the end
            self._ended_early = True
            return False
        except TimeoutError:
            with as_our_errors(SILENCE_S):
                self.close()
                raise
        return True

    async def answer(self, max_bytes: float) -> GuestAnswer:
        """Raises what `call_guest` raises."""
        if not self._ended_early:
            with as_our_errors(SILENCE_S), closing_on_error(self._exchange):
                await self._exchange.end()
        return await good_answer(self._exchange, self._call, self._pool, max_bytes)

    def close(self) -> None:
        self._exchange.close()
