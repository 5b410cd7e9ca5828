"""Descriptors of one process: what it writes, and what it reads. They know the event loop and no rules.

Reading never waits for whoever reads the journal. Each turn of the loop takes a bounded amount, so that a program that
floods cannot keep others from being served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Final

from cloche.models import Tty
from cloche.models.processes import MAX_STDIN_BYTES
from cloche_guest.window_size import set_window_size

READ_BYTES: Final = 64 * 1024
READS_A_TURN: Final = 4

DRAIN_BYTES: Final = 4 * 1024 * 1024
"""More than a pipe can hold (1 MiB at most for users): what the root wrote before its exit is within this."""


REOPENED_S: Final = 0.05
"""Between looks at a terminal that no program has open. Nothing tells that one opens it by its name."""


class OutputPipe:
    """Reads one descriptor to its end, then closes it.

    A terminal that no program has open is at its end only when the root is gone, too: whoever exits closes its output a
    moment before, and is hung up on (SIGHUP) when we close ours in that moment.
    """

    def __init__(self, descriptor: int, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._on_data = on_data
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._root_is_gone = False
        self._look: asyncio.TimerHandle | None = None
        self.ended = False
        os.set_blocking(descriptor, False)
        self._listen()

    def drain(self) -> None:
        """The root is gone: take what is there now."""
        self._root_is_gone = True
        taken = 0
        while not self.ended and taken < DRAIN_BYTES:
            count = self._read()
            if count == 0:
                return
            taken += count

    def resize(self, tty: Tty, session: int | None) -> None:
        """Of a terminal, which controls ``session``; nothing happens when no program has it open any more."""
        if not self.ended:
            set_window_size(self._descriptor, rows=tty.rows, cols=tty.cols, session=session)

    def ignore(self) -> None:
        """From now on read and forget: whoever still writes is neither blocked nor killed by SIGPIPE."""
        self._on_data = _forget
        self._on_end = _nothing

    def close(self) -> None:
        """Closing twice does nothing."""
        if not self.ended:
            self.ended = True
            self._pause()
            os.close(self._descriptor)

    def _listen(self) -> None:
        self._loop.add_reader(self._descriptor, self._readable)

    def _pause(self) -> None:
        self._loop.remove_reader(self._descriptor)
        if self._look is not None:
            self._look.cancel()

    def _readable(self) -> None:
        for _ in range(READS_A_TURN):
            if self.ended or self._read() < READ_BYTES:
                return

    def _read(self) -> int:
        """How many bytes came; 0: none now, or the end."""
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError:  # EIO: no program has the terminal open
            if not self._root_is_gone:
                self._pause()
                self._look = self._loop.call_later(REOPENED_S, self._listen)
                return 0
            data = b""
        if data:
            self._on_data(data)
            return len(data)
        self.close()
        self._on_end()
        return 0


class InputPipe:
    """Writes to one descriptor as fast as the program reads. ``offset`` counts bytes taken; a bounded part may wait."""

    def __init__(self, descriptor: int, *, end_mark: bytes = b"") -> None:
        self._descriptor = descriptor
        self._end_mark = end_mark
        self._loop = asyncio.get_running_loop()
        self._waiting = bytearray()
        self._writing = False
        self._closed = False
        self._ending = False
        self._room = asyncio.Event()
        self.offset = 0
        os.set_blocking(descriptor, False)

    @property
    def is_open(self) -> bool:
        """It takes input."""
        return not self._closed and not self._ending

    def take(self, data: bytes | memoryview) -> int:
        """As much as there is room for; how much that was."""
        count = min(len(data), MAX_STDIN_BYTES - len(self._waiting)) if self.is_open else 0
        self._waiting += data[:count]
        self.offset += count
        self._write()
        return count

    async def wait_for_room(self) -> None:
        """Until some of what waits was written, or it is closed."""
        self._room.clear()
        if self._waiting and not self._closed:
            await self._room.wait()

    def end(self) -> None:
        """The end of the input, behind what waits."""
        self._ending = True
        self._write()

    def close(self) -> None:
        """At once. Closing twice does nothing."""
        if not self._closed:
            self._closed = True
            self._waiting.clear()
            self._stop_writing()
            os.close(self._descriptor)
            self._room.set()

    def _write(self) -> None:
        while self._waiting and not self._closed:
            try:
                count = os.write(self._descriptor, self._waiting[:READ_BYTES])
            except BlockingIOError:
                break
            except OSError:  # EPIPE: the program has closed its end, or is gone
                self.close()
                return
            del self._waiting[:count]
            self._room.set()
        if self._closed:
            return
        if self._waiting and not self._writing:
            self._writing = True
            self._loop.add_writer(self._descriptor, self._write)
        elif not self._waiting:
            self._stop_writing()
            if self._ending:
                with contextlib.suppress(OSError):
                    os.write(self._descriptor, self._end_mark)
                self.close()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._descriptor)


def _forget(_data: bytes) -> None:
    pass


def _nothing() -> None:
    pass
