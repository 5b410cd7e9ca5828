"""OwnTerminal: the user's terminal while a program in a sandbox has it. Owns its raw mode, and gives it back.

Keys go to whoever uses it, but for Ctrl-], which leaves. What is shown goes through `ScreenFilter`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from cloche.cli._screen_text import LEAVE, ScreenFilter

DETACH: Final = b"\x1d"
"""Ctrl-], as telnet has it: no shell or editor needs it."""


class WindowSize(NamedTuple):
    """In characters."""

    cols: int
    rows: int


class OwnTerminal:
    """Descriptors of the keys and of the screen. ``left`` is set when the user leaves."""

    def __init__(self, keys: int, screen: int) -> None:
        self._keys = keys
        self._screen = screen
        self._filter = ScreenFilter()
        self.left = asyncio.Event()

    @contextmanager
    def taken(self, on_keys: Callable[[bytes], None], on_resize: Callable[[], None]) -> Iterator[None]:
        """Raw for as long as this lasts; then as it was, whatever the program did to it."""
        loop = asyncio.get_running_loop()
        with _raw(self._keys):
            loop.add_reader(self._keys, self._read_keys, on_keys)
            loop.add_signal_handler(signal.SIGWINCH, on_resize)
            try:
                yield
            finally:
                loop.remove_reader(self._keys)
                loop.remove_signal_handler(signal.SIGWINCH)
                self._put(f"\x1b7{LEAVE}\x1b8\x1b[0m")

    def show(self, text: str) -> None:
        """Text of the sandbox: what could do harm outside the screen is left out."""
        self._put(self._filter.feed(text))

    def notice(self, text: str) -> None:
        """A word of ours in between."""
        self._put(f"\r\n\x1b[7m[cloche: {text}]\x1b[27m\r\n")

    def restart(self, clear: str) -> None:
        """What follows is for a fresh screen; ``clear`` makes it one."""
        self._filter = ScreenFilter()
        self._put(clear)

    def _put(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._screen, data) :]

    def _read_keys(self, on_keys: Callable[[bytes], None]) -> None:
        data = os.read(self._keys, 64 * 1024)
        head, detach, _ = data.partition(DETACH)
        if head:
            on_keys(head)
        if detach or not data:
            self.left.set()


def window_size() -> WindowSize:
    """Of the user's terminal, within what the service takes."""
    size = shutil.get_terminal_size()
    return WindowSize(min(1000, max(2, size.columns)), min(1000, max(1, size.lines)))


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Keys as they come; the terminal as it was, whatever happens."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor, termios.TCSADRAIN)  # keys that were typed early are kept
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSAFLUSH, before)
