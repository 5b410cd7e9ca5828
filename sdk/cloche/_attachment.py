"""Attachments: a live connection to a terminal that comes back by itself. `Attachment` blocks, `AsyncAttachment` awaits.

Bytes arrive exactly once over any number of connections; what the server no longer has is a `TerminalGap`, never silent.
Output that is not read is not acknowledged: a program whose reader is slow waits for it.
"""

from __future__ import annotations

import codecs
import functools
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Concatenate, Final, ParamSpec, Self, TypeVar

from cloche._flow import Pause, _renamed
from cloche._patience import Patience
from cloche._socket import AwaitingSocket, BlockingSocket, Open, Say, Shut, SocketFlow, SocketLost, hear, say
from cloche._terminal_stream import Gap, Output, Reset, StreamEvent, TerminalStream
from cloche.errors import ClocheError, ConnectionFailed, Gone, SandboxNotRunning, WaitTimeout
from cloche.models.terminals import (
    CLOSE_ASLEEP,
    CLOSE_NO_TERMINAL,
    FINAL_CLOSE_CODES,
    Resize,
    TakeControl,
    TerminalExit,
)
from cloche.terminal_frames import SUBPROTOCOL

QUIET_S: Final = 0.05
"""Without output for so long, the last bit is acknowledged."""

KEPT_TEXT: Final = 1024 * 1024
"""Characters that `expect` looks at; a pattern that spans more is none."""

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class TerminalGap:
    """Output from ``start`` to ``end`` (offsets) that the server no longer had when this client came back."""

    start: int
    end: int


class TerminalEnded(ClocheError):
    """The program ended before what was waited for. ``exit`` says how, ``text`` has the last words."""

    code: ClassVar[str] = "terminal_ended"
    status: ClassVar[int] = 409

    def __init__(self, message: str, exit_: TerminalExit | None, text: str) -> None:
        super().__init__(message)
        self.exit = exit_
        self.text = text


@dataclass(frozen=True, slots=True)
class Where:
    """How to reach a terminal."""

    url: str
    headers: dict[str, str]
    cols: int | None = None
    rows: int | None = None


def blocking(flow: Callable[Concatenate[S, P], SocketFlow[T]]) -> Callable[Concatenate[S, P], T]:
    """``flow`` as a method that blocks; as `cloche._flow.blocking`, over a socket."""

    @functools.wraps(flow)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        socket: BlockingSocket = self._socket  # type: ignore[attr-defined]
        return socket.drive(flow(self, *args, **kwargs))

    return _renamed(method, flow)


def awaiting(flow: Callable[Concatenate[S, P], SocketFlow[T]]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """``flow`` as a coroutine method."""

    @functools.wraps(flow)
    async def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        socket: AwaitingSocket = self._socket  # type: ignore[attr-defined]
        return await socket.drive(flow(self, *args, **kwargs))

    return _renamed(method, flow)


class AttachmentFlows:
    """What can be done with an attached terminal, as flows."""

    def __init__(self, where: Where, patience: Patience, clock: Callable[[], float] = time.monotonic) -> None:
        self._where = where
        self._patience = patience
        self._clock = clock
        self._stream = TerminalStream(secrets.token_urlsafe(12))
        self._unread = bytearray()
        self._position: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._closed = False
        self.gaps: list[TerminalGap] = []

    @property
    def exit(self) -> TerminalExit | None:
        """How the program ended, once all of its output was received."""
        return self._stream.exit

    @property
    def is_controller(self) -> bool:
        """Whether this client sets the size. Typing makes it so."""
        return self._stream.role == "controller"

    # Public, as flows

    def _begin(self) -> SocketFlow[None]:
        """The first connection.

        :raises ConnectionFailed: it ended before the terminal said anything.
        """
        try:
            yield from self._attach()
        except SocketLost as error:
            raise ConnectionFailed(f"the terminal did not answer: {error}") from error

    def _attach(self) -> SocketFlow[None]:
        """Connect, say hello, and wait for the welcome."""
        yield Open(self._where.url, self._where.headers, SUBPROTOCOL)
        yield Say([self._stream.hello(cols=self._where.cols, rows=self._where.rows)])
        while not self._stream.connected:
            yield from self._hear_one(None)

    def _read(self, timeout_s: float | None = None) -> SocketFlow[bytes]:
        """The next output, at least one byte; ``b""`` after the program's end.

        :param timeout_s: how long to wait at most; None: for ever.
        :raises WaitTimeout: nothing came in time. Nothing is lost by that.
        A sandbox at rest is woken by what was typed, not by a reader.

        :raises Gone: the terminal was deleted.
        :raises SandboxNotRunning: the sandbox was put to rest. The next call of this attachment wakes it, if it may.
        """
        deadline = self._deadline(timeout_s)
        while not self._unread:
            if self._is_over:
                return b""
            if not (yield from self._step(deadline)):
                raise WaitTimeout(f"no output within {timeout_s:g} s", details={"bound_s": timeout_s})
        data = bytes(self._unread)
        self._unread.clear()
        yield from self._taken()
        return data

    def _send(self, data: str | bytes) -> SocketFlow[None]:
        """Type ``data``; returns when all of it is on its way. Text is sent as UTF-8; Enter is ``\\n``, Ctrl-C ``\\x03``."""
        self._stream.type(data.encode() if isinstance(data, str) else data)
        yield from say(self._stream.to_send())
        while self._stream.unsent_input and not self._is_over:
            yield from self._step(None)

    def _expect(self, pattern: str | re.Pattern[str], timeout_s: float = 30.0) -> SocketFlow[re.Match[str]]:
        """Read until the output matches the regular expression; what came before and with the match counts as read.

        Output is decoded as UTF-8; escape sequences are in it as they came.

        :raises WaitTimeout: no match in time; ``details.text`` has the last output.
        :raises TerminalEnded: the program ended first.
        """
        wanted = re.compile(pattern)
        deadline = self._deadline(timeout_s)
        while True:
            self._text = (self._text + self._decoder.decode(bytes(self._unread)))[-KEPT_TEXT:]
            self._unread.clear()
            yield from self._taken()
            if (match := wanted.search(self._text)) is not None:
                self._text = self._text[match.end() :]
                return match
            if self._is_over:
                raise TerminalEnded(f"the program ended before {wanted.pattern!r}", self.exit, self._text[-2000:])
            if not self._unread and not (yield from self._step(deadline)):
                raise WaitTimeout(
                    f"no match for {wanted.pattern!r} within {timeout_s:g} s",
                    details={"bound_s": timeout_s, "text": self._text[-2000:]},
                )

    def _resize(self, cols: int, rows: int) -> SocketFlow[None]:
        """Take control, and give the terminal this size. One whose program has ended stays as it is."""
        self._where = Where(self._where.url, self._where.headers, cols, rows)
        messages: list[str | bytes] = [TakeControl().model_dump_json(), Resize(cols=cols, rows=rows).model_dump_json()]
        while not self._is_over:
            try:
                yield Say(messages)
            except SocketLost:
                yield from self._hear_the_rest()
            else:
                return

    def _wait(self, timeout_s: float | None = None) -> SocketFlow[TerminalExit]:
        """Read, and throw away, all output until the program ends.

        :raises WaitTimeout: it did not end in time.
        """
        deadline = self._deadline(timeout_s)
        while self.exit is None:
            if self._is_over or not (yield from self._step(deadline)):
                raise WaitTimeout(f"the program did not end within {timeout_s} s", details={"bound_s": timeout_s})
            self._unread.clear()
            yield from self._taken()
        return self.exit

    def _close(self) -> SocketFlow[None]:
        """Disconnect. The program goes on."""
        self._closed = True
        yield Shut()

    # Inside

    @property
    def _is_over(self) -> bool:
        return self._closed or self.exit is not None

    def _deadline(self, timeout_s: float | None) -> float | None:
        return None if timeout_s is None else self._clock() + timeout_s

    def _step(self, deadline: float | None) -> SocketFlow[bool]:
        """Take one message, over a new connection when the old one is lost; False when the time is over."""
        left = None if deadline is None else deadline - self._clock()
        if left is not None and left <= 0:
            return False
        try:
            yield from self._hear_one(left)
        except SocketLost as error:
            yield from self._come_back(error)
        return True

    def _hear_one(self, left: float | None) -> SocketFlow[None]:
        message = yield from hear(QUIET_S if left is None else min(left, QUIET_S))
        if message is None:
            yield from say(self._stream.to_send(quiet=True))
            message = yield from hear(left)
        if message is not None:
            for event in self._stream.receive(message, self._clock()):
                self._take(event)
            yield from say(self._stream.to_send())

    def _hear_the_rest(self) -> SocketFlow[None]:
        """Of a connection that is lost; then come back, unless that was the program's end."""
        try:
            while not self._is_over:
                yield from self._hear_one(None)
        except SocketLost as error:
            yield from self._come_back(error)

    def _take(self, event: StreamEvent) -> None:
        match event:
            case Output(offset, data):
                position = self._skip_to(offset)
                fresh = data[position - offset :]
                self._unread += fresh
                self._position = position + len(fresh)
            case Gap(_, end):
                self._skip_to(end)
            case Reset(start=start, new_life=True):
                self._position = start
            case Reset(start=start):
                self._skip_to(start)

    def _skip_to(self, offset: int) -> int:
        """Where to go on; a gap, when that is behind what was received."""
        position = offset if self._position is None else self._position
        if offset > position:
            self.gaps.append(TerminalGap(position, offset))
            position = offset
        self._position = position
        return position

    def _taken(self) -> SocketFlow[None]:
        if self._position is not None:
            self._stream.took(self._position)
        if not self._is_over:
            yield from say(self._stream.to_send())

    def _come_back(self, lost: SocketLost) -> SocketFlow[None]:
        """Connect anew, as often as patience says.

        :raises Gone: the terminal was deleted.
        :raises ConnectionFailed: it stays away, or this client is no longer wanted.
        """
        self._stream.lost(self._clock())
        if self._is_over:
            return
        if lost.code == CLOSE_NO_TERMINAL:
            raise Gone("the terminal was deleted")
        if lost.code == CLOSE_ASLEEP and not self._stream.has_input:
            yield Shut()
            self._stream.rested()
            raise SandboxNotRunning(
                "the sandbox of this terminal was put to rest", hint="type or read on to wake it", details={"cut": True}
            )
        if lost.code in FINAL_CLOSE_CODES - {CLOSE_ASLEEP}:
            raise ConnectionFailed(f"the connection was closed ({lost.code}): {lost.reason}")
        for delay in self._patience.delays():
            try:
                return (yield from self._attach())
            except (ConnectionFailed, SocketLost):
                yield Pause(delay)
            except ClocheError as error:
                if not error.retryable:
                    raise
                yield Pause(delay)
        raise ConnectionFailed("lost the connection to the terminal; it goes on", hint="attach again")


class Attachment(AttachmentFlows):
    """A terminal, attached. Made by `Terminal.attach`. Iterating gives the output until the program ends."""

    def __init__(self, where: Where, patience: Patience) -> None:
        super().__init__(where, patience)
        self._socket = BlockingSocket()
        self._socket.drive(self._begin())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[bytes]:
        while data := self.read():
            yield data

    read = blocking(AttachmentFlows._read)
    send = blocking(AttachmentFlows._send)
    expect = blocking(AttachmentFlows._expect)
    resize = blocking(AttachmentFlows._resize)
    wait = blocking(AttachmentFlows._wait)
    close = blocking(AttachmentFlows._close)


class AsyncAttachment(AttachmentFlows):
    """A terminal, attached. Made by ``async with terminal.attach()``."""

    def __init__(self, where: Where, patience: Patience) -> None:
        super().__init__(where, patience)
        self._socket = AwaitingSocket()

    async def __aenter__(self) -> Self:
        await self._socket.drive(self._begin())
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    read = awaiting(AttachmentFlows._read)
    send = awaiting(AttachmentFlows._send)
    expect = awaiting(AttachmentFlows._expect)
    resize = awaiting(AttachmentFlows._resize)
    wait = awaiting(AttachmentFlows._wait)
    close = awaiting(AttachmentFlows._close)
