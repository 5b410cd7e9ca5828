"""ShellSession: a terminal in a sandbox, shown in the user's own (`OwnTerminal`).

The screen follows `TerminalStream`: output goes to the screen, keys go the other way; a lost connection is said, and mended.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final

from cloche._attachment import Where
from cloche._socket import AwaitingSocket, Open, Say, Shut, SocketFlow, SocketLost, hear, say
from cloche._terminal_stream import Discarded, Gap, Output, Preamble, Reset, Resumed, StreamEvent, TerminalStream
from cloche.cli._own_terminal import OwnTerminal, WindowSize, window_size
from cloche.cli._screen_text import CLEAR
from cloche.cli._terminal_text import plain
from cloche.errors import ClocheError, Gone
from cloche.models.terminals import CLOSE_ASLEEP, FINAL_CLOSE_CODES, Resize, TerminalExit
from cloche.terminal_frames import SUBPROTOCOL

Rouse = Callable[[], Awaitable[object]]

PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
QUIET_S: Final = 0.05


class ShellSession:
    """One use of a terminal. `run` returns how the program ended, or None when the user detached."""

    def __init__(self, where: Where, own: OwnTerminal, rouse: Rouse, *, by_itself: bool = False) -> None:
        """``rouse`` wakes the sandbox, should it be put to rest: when a key is pressed, or ``by_itself``."""
        self._where = where
        self._own = own
        self._rouse = rouse
        self._by_itself = by_itself
        self._knocked: asyncio.Event | None = None
        self._socket = AwaitingSocket()
        self._stream = TerminalStream(secrets.token_urlsafe(12))
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._typed = asyncio.Event()
        self._away = False
        self._told_size = WindowSize(0, 0)

    async def run(self) -> TerminalExit | None:
        with self._own.taken(self._take_keys, self._on_resize):
            talking = asyncio.create_task(self._talk())
            typing = asyncio.create_task(self._pass_on_keys())
            leaving = asyncio.create_task(self._own.left.wait())
            try:
                await asyncio.wait({talking, leaving}, return_when=asyncio.FIRST_COMPLETED)
                return await talking if talking.done() else None
            finally:
                for task in (talking, typing, leaving):
                    task.cancel()
                await asyncio.gather(talking, typing, leaving, return_exceptions=True)
                await self._socket.drive(_shut())

    # The connection

    async def _talk(self) -> TerminalExit:
        """
        Raises:
            Gone, ClocheError
        """
        while True:
            try:
                return await self._talk_once()
            except SocketLost as error:
                if error.code == CLOSE_ASLEEP:
                    await self._sleep(error)
                    continue
                self._check_final(error)
            except ClocheError as error:  # `ConnectionFailed`, or what a server says that is there again too soon
                if not error.retryable or (not self._away and self._stream.epoch is None):
                    raise
            await self._wait_to_retry()

    async def _talk_once(self) -> TerminalExit:
        await self._socket.drive(self._attach())
        while self._stream.exit is None:
            await self._socket.drive(self._hear())
        return self._stream.exit

    def _attach(self) -> SocketFlow[None]:
        self._told_size = size = window_size()
        yield Open(self._where.url, self._where.headers, SUBPROTOCOL)
        yield Say([self._stream.hello(cols=size.cols, rows=size.rows)])

    def _hear(self) -> SocketFlow[None]:
        message = yield from hear(QUIET_S)
        if message is None:
            yield from say(self._stream.to_send(quiet=True))
            message = yield from hear(None)
        assert message is not None
        for event in self._stream.receive(message, time.monotonic()):
            self._take(event)
        yield from say(self._stream.to_send())

    def _check_final(self, lost: SocketLost) -> None:
        if lost.code in FINAL_CLOSE_CODES:
            raise Gone(f"the terminal closed the connection ({lost.code}): {lost.reason}")

    async def _sleep(self, lost: SocketLost) -> None:
        """The sandbox was put to rest, by somebody or by its policy: it does not cost anything until it is wanted again."""
        self._stream.lost(time.monotonic())
        self._away, self._attempt = True, 0
        if not self._by_itself:
            self._knocked = asyncio.Event()
            self._own.notice(f"{_message_of(lost)}. Any key wakes it, Ctrl-] leaves")
            await self._knocked.wait()
            self._knocked = None
        self._own.notice(f"{_message_of(lost)}; waking it" if self._by_itself else "waking it")
        await self._rouse()

    async def _wait_to_retry(self) -> None:
        self._stream.lost(time.monotonic())
        attempt = 0 if not self._away else self._attempt + 1
        if not self._away:
            self._own.notice("connection lost; reconnecting. Keys wait for 10 s, Ctrl-] leaves")
        self._away, self._attempt = True, attempt
        pause_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
        await asyncio.sleep(pause_s * (0.8 + secrets.randbelow(400) / 1000))

    _attempt = 0

    # The screen

    def _take(self, event: StreamEvent) -> None:
        match event:
            case Output(_, data):
                self._own.show(self._decoder.decode(data))
                self._stream.took(event.end)
            case Preamble(data):
                self._own.show(data.decode("utf-8", "replace"))
            case Resumed():
                self._back()
            case Reset():
                self._back()
                self._decoder.reset()
                self._own.restart(CLEAR if event.lost or event.new_life is False else "")
                if event.lost:
                    self._own.notice(f"earlier output dropped ({event.lost // 1024} KiB)")
            case Gap(start, end):
                self._own.notice(f"{end - start} bytes of output are missing here")
            case Discarded(count):
                self._own.notice(f"{count} bytes you typed were dropped: it is too late for them")
            case _:
                pass

    def _back(self) -> None:
        if window_size() != self._told_size:  # it changed between the hello and its answer
            self._on_resize()
        if self._away:
            self._away = False
            self._own.notice("connected again")

    # The keys

    def _take_keys(self, keys: bytes) -> None:
        """Those that wake the sandbox are for nothing else: whoever typed them saw no prompt."""
        if self._knocked is not None:
            self._knocked.set()
            return
        self._stream.type(keys)
        self._typed.set()

    async def _pass_on_keys(self) -> None:
        while True:
            await self._typed.wait()
            self._typed.clear()
            await self._say(self._stream.to_send())

    def _on_resize(self) -> None:
        size = window_size()
        message = Resize(cols=size.cols, rows=size.rows).model_dump_json()
        task = asyncio.create_task(self._say([message]))
        self._resizing = task  # kept, or it could be collected before it is done

    async def _say(self, messages: list[str | bytes]) -> None:
        if not self._stream.connected:
            return
        with contextlib.suppress(ClocheError):
            await self._socket.drive(say(messages))  # whoever hears next mends the connection; input is kept


def _message_of(lost: SocketLost) -> str:
    """The reason of a close is the beginning of an error's JSON."""
    try:
        return plain(str(json.loads(lost.reason)["message"]))
    except (ValueError, KeyError, TypeError):
        return "the sandbox was put to rest"


def _shut() -> SocketFlow[None]:
    yield Shut()
