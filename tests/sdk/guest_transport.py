"""A real guest behind the SDK, without a server: a transport that takes the sandbox out of the path.

It can also lose connections: each byte stream of an answer is cut at a random place, with a given chance.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx

from cloche._config import Config
from cloche._link import AsyncLink, Link
from cloche._patience import Patience

sys.path.insert(0, str(Path(__file__).parent.parent / "guest"))

from guest_process import Guest, running_guest  # noqa: F401 (for the tests)

SANDBOX = "a" * 20
_PREFIX = re.compile(r"^/v1/sandboxes/[a-z0-9]{20}")


def to_guest(request: httpx.Request, port: int) -> httpx.Request:
    path = _PREFIX.sub("/v1", request.url.raw_path.decode())
    request.url = httpx.URL(f"http://127.0.0.1:{port}{path}")
    request.headers["Host"] = f"127.0.0.1:{port}"
    return request


class CutStream(httpx.SyncByteStream):
    """Passes `left` bytes on, then the connection is lost."""

    def __init__(self, inner: httpx.SyncByteStream, left: int) -> None:
        self._inner = inner
        self._left = left

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._inner:
            if len(chunk) >= self._left:
                yield chunk[: self._left]
                self._inner.close()
                raise httpx.ReadError("cut")
            self._left -= len(chunk)
            yield chunk

    def close(self) -> None:
        self._inner.close()


class GuestTransport(httpx.BaseTransport):
    """``cut_bytes``: event streams are cut after up to so many bytes. ``lose``: chance to lose the answer of a call."""

    def __init__(self, port: int, *, cut_bytes: int = 0, lose: float = 0.0, seed: int = 0) -> None:
        self.cuts = 0
        self.lost = 0
        self._inner = httpx.HTTPTransport()
        self._port = port
        self._cut_bytes = cut_bytes
        self._lose = lose
        self._random = random.Random(seed)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(to_guest(request, self._port))
        assert isinstance(response.stream, httpx.SyncByteStream)
        if "text/event-stream" in response.headers.get("Content-Type", ""):
            if self._cut_bytes:
                self.cuts += 1
                left = 1 + int(self._random.random() ** 2 * self._cut_bytes)  # small ones more often
                return httpx.Response(
                    response.status_code, headers=response.headers, stream=CutStream(response.stream, left)
                )
        elif self._random.random() < self._lose:
            response.read()
            response.close()
            self.lost += 1
            raise httpx.ReadError("lost")
        return response

    def close(self) -> None:
        self._inner.close()


class AsyncGuestTransport(httpx.AsyncBaseTransport):
    """The plain way, for `AsyncLink`."""

    def __init__(self, port: int) -> None:
        self._inner = httpx.AsyncHTTPTransport()
        self._port = port

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._inner.handle_async_request(to_guest(request, self._port))

    async def aclose(self) -> None:
        await self._inner.aclose()


CONFIG = Config(url="http://127.0.0.1:1", api_key="x", is_loopback=True)


def link_to(guest: Guest, **faults: float) -> tuple[Link, GuestTransport]:
    transport = GuestTransport(guest.port, **faults)  # type: ignore[arg-type]
    link = Link(CONFIG, Patience(window_s=60, first_delay_s=0.0005), transport)
    link._reached = True  # it was there before
    return link, transport


async def async_link_to(guest: Guest) -> AsyncIterator[AsyncLink]:
    link = AsyncLink(CONFIG, Patience(), AsyncGuestTransport(guest.port))
    yield link
    await link.close()
