"""ShellSession: a terminal in a sandbox, shown in the user's own. Owns the raw mode of standard input, and gives it back.

The screen follows `TerminalStream`: output goes to standard output through `ScreenFilter`, keys go the other way; a lost
connection is said, and mended.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import secrets
import shutil
import signal
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cloche._attachment import Where
from cloche._socket import AwaitingSocket, Open, Say, Shut, SocketFlow, SocketLost, hear
from cloche._terminal_stream import Discarded, Gap, Output, Preamble, Reset, Resumed, StreamEvent, TerminalStream
from cloche.cli._screen_text import CLEAR, LEAVE, ScreenFilter
from cloche.errors import ClocheError, ConnectionFailed, Gone
from cloche.models.terminals import FINAL_CLOSE_CODES, Resize, TerminalExit
from cloche.terminal_frames import SUBPROTOCOL

DETACH: Final = b"\x1d"
"""Ctrl-], as telnet has it: no shell or editor needs it."""

PAUSES_S: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
QUIET_S: Final = 0.05


class ShellSession:
    """One use of a terminal. `run` returns how the program ended, or None when the user detached."""

    def __init__(self, where: Where, *, keys: int, screen: int) -> None:
        self._where = where
        self._keys = keys
        self._screen = screen
        self._socket = AwaitingSocket()
        self._stream = TerminalStream(secrets.token_urlsafe(12))
        self._filter = ScreenFilter()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._detached = asyncio.Event()
        self._typed = asyncio.Event()
        self._away = False

    async def run(self) -> TerminalExit | None:
        loop = asyncio.get_running_loop()
        with _raw(self._keys):
            loop.add_reader(self._keys, self._read_keys)
            loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
            talking = asyncio.create_task(self._talk())
            typing = asyncio.create_task(self._pass_on_keys())
            leaving = asyncio.create_task(self._detached.wait())
            try:
                await asyncio.wait({talking, leaving}, return_when=asyncio.FIRST_COMPLETED)
                return await talking if talking.done() else None
            finally:
                loop.remove_reader(self._keys)
                loop.remove_signal_handler(signal.SIGWINCH)
                for task in (talking, typing, leaving):
                    task.cancel()
                await asyncio.gather(talking, typing, leaving, return_exceptions=True)
                await self._socket.drive(_shut())
                self._show(f"\x1b7{LEAVE}\x1b8\x1b[0m")

    # The connection

    async def _talk(self) -> TerminalExit:
        """
        Raises:
            Gone, ConnectionFailed, ClocheError
        """
        while True:
            try:
                return await self._talk_once()
            except SocketLost as error:
                self._check_final(error)
            except ConnectionFailed:
                if not self._away and self._stream.epoch is None:
                    raise
            await self._wait_to_retry()

    async def _talk_once(self) -> TerminalExit:
        await self._socket.drive(self._attach())
        while self._stream.exit is None:
            await self._socket.drive(self._hear())
        return self._stream.exit

    def _attach(self) -> SocketFlow[None]:
        size = shutil.get_terminal_size()
        yield Open(self._where.url, self._where.headers, SUBPROTOCOL)
        yield Say([self._stream.hello(cols=max(2, size.columns), rows=max(1, size.lines))])

    def _hear(self) -> SocketFlow[None]:
        message = yield from hear(QUIET_S)
        if message is None:
            yield Say(self._stream.to_send(quiet=True))
            message = yield from hear(None)
        assert message is not None
        for event in self._stream.receive(message, time.monotonic()):
            self._take(event)
        yield Say(self._stream.to_send())

    def _check_final(self, lost: SocketLost) -> None:
        if lost.code in FINAL_CLOSE_CODES:
            raise Gone(f"the terminal closed the connection ({lost.code}): {lost.reason}")

    async def _wait_to_retry(self) -> None:
        self._stream.lost(time.monotonic())
        attempt = 0 if not self._away else self._attempt + 1
        if not self._away:
            self._notice("connection lost; reconnecting. Keys wait for 10 s, Ctrl-] leaves")
        self._away, self._attempt = True, attempt
        pause_s = PAUSES_S[min(attempt, len(PAUSES_S) - 1)]
        await asyncio.sleep(pause_s * (0.8 + secrets.randbelow(400) / 1000))

    _attempt = 0

    # The screen

    def _take(self, event: StreamEvent) -> None:
        match event:
            case Output(_, data):
                self._show(self._filter.feed(self._decoder.decode(data)))
                self._stream.took(event.end)
            case Preamble(data):
                self._show(self._filter.feed(data.decode("utf-8", "replace")))
            case Resumed():
                self._back()
            case Reset():
                self._back()
                self._filter = ScreenFilter()
                self._decoder.reset()
                if event.lost or event.new_life is False:
                    self._show(CLEAR)
                if event.lost:
                    self._notice(f"earlier output dropped ({event.lost // 1024} KiB)")
            case Gap(start, end):
                self._notice(f"{end - start} bytes of output are missing here")
            case Discarded(count):
                self._notice(f"{count} bytes you typed were dropped: it is too late for them")
            case _:
                pass

    def _back(self) -> None:
        if self._away:
            self._away = False
            self._notice("connected again")

    def _notice(self, text: str) -> None:
        self._show(f"\r\n\x1b[7m[cloche: {text}]\x1b[27m\r\n")

    def _show(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._screen, data) :]

    # The keys

    def _read_keys(self) -> None:
        data = os.read(self._keys, 64 * 1024)
        head, detach, _ = data.partition(DETACH)
        self._stream.type(head)
        self._typed.set()
        if detach or not data:
            self._detached.set()

    async def _pass_on_keys(self) -> None:
        while True:
            await self._typed.wait()
            self._typed.clear()
            await self._say(self._stream.to_send())

    def _on_resize(self) -> None:
        size = shutil.get_terminal_size()
        message = Resize(cols=max(2, size.columns), rows=max(1, size.lines)).model_dump_json()
        task = asyncio.create_task(self._say([message]))
        self._resizing = task  # kept, or it could be collected before it is done

    async def _say(self, messages: list[str | bytes]) -> None:
        if not self._stream.connected:
            return
        try:
            await self._socket.drive(_say(messages))
        except (SocketLost, ClocheError):
            return  # whoever hears next mends the connection; input is kept


def _say(messages: list[str | bytes]) -> SocketFlow[None]:
    yield Say(messages)


def _shut() -> SocketFlow[None]:
    yield Shut()


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Keys as they come; the terminal as it was, whatever happens."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # keys that were typed early are kept
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
