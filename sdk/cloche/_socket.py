"""Sockets: a WebSocket as steps of a flow. The only place that knows `websockets`.

| step | outcome |
|---|---|
| `Open` | None; the error of the server's answer, or `ConnectionFailed` |
| `Say` | None; `SocketLost` |
| `Hear` | the next message; None after ``timeout_s``; `SocketLost` |
| `Shut` | None |

`BlockingSocket` and `AwaitingSocket` carry the steps out, one connection at a time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias, TypeVar, cast

from websockets.asyncio.client import ClientConnection as AsyncConnection
from websockets.asyncio.client import connect as async_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from cloche._answers import Answer, error_of
from cloche._flow import Pause, driven, driven_awaiting
from cloche.errors import ConnectionFailed

T = TypeVar("T")

CONNECT_S: Final = 10.0
CLOSE_S: Final = 1.0
"""For the other side's goodbye; it may be gone."""

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
MAX_QUEUE: Final = 4
"""Messages that wait unread in memory; the terminal's own window bounds the rest."""

_LOG: Final = logging.getLogger("cloche.socket")
_LOG.addHandler(logging.NullHandler())
_LOG.propagate = False  # a cut connection is this module's to report, by `SocketLost`


class SocketLost(Exception):
    """The connection ended. ``code`` is 1006 when nobody said goodbye."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"connection closed ({code}) {reason}")
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Open:
    """Connect."""

    url: str
    headers: Mapping[str, str]
    subprotocol: str


@dataclass(frozen=True, slots=True)
class Say:
    """Send these messages."""

    messages: Sequence[str | bytes]


@dataclass(frozen=True, slots=True)
class Hear:
    """Wait for a message."""

    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class Shut:
    """Close the connection, if there is one."""


SocketStep: TypeAlias = Open | Say | Hear | Shut | Pause
SocketFlow: TypeAlias = Generator[SocketStep, Any, T]


def hear(timeout_s: float | None) -> SocketFlow[str | bytes | None]:
    """The next message."""
    return cast("str | bytes | None", (yield Hear(timeout_s)))


def say(messages: Sequence[str | bytes]) -> SocketFlow[None]:
    """Send, if the connection is still there. If not, whoever hears next is told: behind what the other side said before it
    left, which may be the end that one waits for."""
    try:
        yield Say(messages)
    except SocketLost:
        return


class BlockingSocket:
    """Carries out flows by blocking the calling thread."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._connection: ClientConnection | None = None

    def drive(self, flow: SocketFlow[T]) -> T:
        """Carry out ``flow`` and return its result."""
        return driven(flow, self._carry_out)

    def _carry_out(self, step: SocketStep) -> object:
        match step:
            case Open():
                self._shut()
                self._open(step)
            case Say(messages):
                self._say(messages)
            case Hear(timeout_s):
                return self._hear(timeout_s)
            case Shut():
                self._shut()
            case Pause(seconds):
                time.sleep(seconds)
        return None

    def _open(self, step: Open) -> None:
        try:
            connection = connect(
                step.url,
                subprotocols=[Subprotocol(step.subprotocol)],
                additional_headers=step.headers,
                open_timeout=CONNECT_S,
                close_timeout=CLOSE_S,
                max_size=MAX_MESSAGE_BYTES,
                max_queue=MAX_QUEUE,
                compression=None,
                proxy=None,
                logger=_LOG,
            )
            self._connection = self._stack.enter_context(connection)
        except (OSError, WebSocketException) as error:
            raise_opening(error, step.url)

    def _say(self, messages: Sequence[str | bytes]) -> None:
        try:
            for message in messages:
                self._alive().send(message)
        except ConnectionClosed as error:
            raise lost_by(error) from error

    def _hear(self, timeout_s: float | None) -> str | bytes | None:
        try:
            return self._alive().recv(timeout_s)
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            raise lost_by(error) from error

    def _alive(self) -> ClientConnection:
        if self._connection is None:
            raise SocketLost(1006, "not connected")
        return self._connection

    def _shut(self) -> None:
        self._connection = None
        stack, self._stack = self._stack, ExitStack()
        stack.close()


class AwaitingSocket:
    """Carries out flows in the running event loop."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._connection: AsyncConnection | None = None
        self._saying = asyncio.Lock()

    async def drive(self, flow: SocketFlow[T]) -> T:
        """Carry out ``flow`` and return its result."""
        return await driven_awaiting(flow, self._carry_out)

    async def _carry_out(self, step: SocketStep) -> object:
        match step:
            case Open():
                await self._shut()
                await self._open(step)
            case Say(messages):
                await self._say(messages)
            case Hear(timeout_s):
                return await self._hear(timeout_s)
            case Shut():
                await self._shut()
            case Pause(seconds):
                await asyncio.sleep(seconds)
        return None

    async def _open(self, step: Open) -> None:
        try:
            connection = async_connect(
                step.url,
                subprotocols=[Subprotocol(step.subprotocol)],
                additional_headers=step.headers,
                open_timeout=CONNECT_S,
                close_timeout=CLOSE_S,
                max_size=MAX_MESSAGE_BYTES,
                max_queue=MAX_QUEUE,
                compression=None,
                proxy=None,
                logger=_LOG,
            )
            self._connection = await self._stack.enter_async_context(connection)
        except (OSError, WebSocketException) as error:
            raise_opening(error, step.url)

    async def _say(self, messages: Sequence[str | bytes]) -> None:
        """All of them before those of another task, also while the network is slow: input that is not in order is refused."""
        async with self._saying:
            try:
                for message in messages:
                    await self._alive().send(message)
            except ConnectionClosed as error:
                raise lost_by(error) from error

    async def _hear(self, timeout_s: float | None) -> str | bytes | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._alive().recv()
        except TimeoutError:
            return None
        except ConnectionClosed as error:
            raise lost_by(error) from error

    def _alive(self) -> AsyncConnection:
        if self._connection is None:
            raise SocketLost(1006, "not connected")
        return self._connection

    async def _shut(self) -> None:
        self._connection = None
        stack, self._stack = self._stack, AsyncExitStack()
        await stack.aclose()


def raise_opening(error: Exception, url: str) -> NoReturn:
    """What kept a connection from being made, as an error of Cloche."""
    if isinstance(error, InvalidStatus):
        response = error.response
        raise error_of(Answer(response.status_code, bytes(response.body or b""), response.headers.get("X-Request-Id")))
    raise ConnectionFailed(f"cannot reach {url}: {error or type(error).__name__}", details={"url": url}) from error


def lost_by(error: ConnectionClosed) -> SocketLost:
    """With the code the other side gave."""
    if error.rcvd is None:
        return SocketLost(1006, "")
    return SocketLost(error.rcvd.code, error.rcvd.reason)
