"""The PTY: one program on one terminal device. Owns the master's descriptor, and knows nothing of clients.

Output is read without blocking. A few small pieces go on at once (the echo of keystrokes); what else comes within
`COALESCE_S` goes on together (a screen that is painted in many writes).

The end needs both: the program's exit, and the end of its output. Linux ends the output when the session's leader exits;
gVisor does not, and a background program may hold the device open. So after the exit, `SILENCE_S` without output counts
as its end, and `LINGER_S` bounds it all.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import termios
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from cloche_guest.children import Account, Child, Children, ExitStatus
from cloche_guest.terminals.log import Dimensions
from cloche_guest.window_size import set_window_size

READ_BYTES: Final = 64 * 1024
MAX_READS: Final = 16
"""Linux gives at most 4 KiB a read; so many of them fill a frame, and the loop turns in between."""

COALESCE_S: Final = 0.005
AT_ONCE: Final = 16
"""Pieces in a window of `COALESCE_S` that do not wait: a program that answers every message of ours (0.4 ms each) never does.
A paste that is echoed one by one has hundreds."""

SILENCE_S: Final = 0.1
LINGER_S: Final = 2.0


class PtyEvents(Protocol):
    """Who is told."""

    def on_output(self, data: bytes) -> None: ...

    def on_written(self, writer: str, count: int) -> None: ...

    def on_end(self, status: ExitStatus) -> None: ...


class Pty:
    """One program. Made by `open_pty`; closes itself after the program's end."""

    def __init__(self, master: int, child: Child, events: PtyEvents) -> None:
        self._loop = asyncio.get_running_loop()
        self._master = master
        self._child = child
        self._events = events
        self._buffer = bytearray()
        self._flush: asyncio.TimerHandle | None = None
        self._window_end = 0.0
        self._at_once = 0
        self._read_at = self._loop.time()
        self._reading = False
        self._eof = False
        self._closed = False
        self._queue: deque[tuple[str, memoryview]] = deque()
        self._writing = False
        self._ending = asyncio.create_task(self._end())
        self.resume()

    @property
    def pid(self) -> int:
        return self._child.pid

    def signal(self, number: int) -> None:
        """To the program and its group."""
        self._child.signal_group(number)

    def pause(self) -> None:
        """Read no more for now: the program waits when the device's own buffer is full."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._master)

    def resume(self) -> None:
        """Read on."""
        if not self._reading and not self._eof and not self._closed:
            self._reading = True
            self._read_at = self._loop.time()
            self._loop.add_reader(self._master, self._read)

    def resize(self, size: Dimensions) -> None:
        """The programs in it get SIGWINCH."""
        if not self._closed:
            set_window_size(self._master, rows=size.rows, cols=size.cols, session=self.pid)

    def write(self, writer: str, data: bytes) -> None:
        """Queue input. The caller bounds the queue: it has `on_written` for every byte."""
        self._queue.append((writer, memoryview(data)))
        if not self._writing:
            self._write()

    async def wait_closed(self) -> None:
        """Until the program has ended and everything is released."""
        await asyncio.shield(self._ending)

    # Reading

    def _read(self) -> None:
        for _ in range(MAX_READS):
            try:
                data = os.read(self._master, READ_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                data = b""  # Linux: nobody holds the other side any more
            if not data:
                self._eof = True
                self.pause()
                break
            self._buffer += data
            if len(self._buffer) >= READ_BYTES:
                break
        self._read_at = self._loop.time()
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        now = self._loop.time()
        if now >= self._window_end:
            self._window_end, self._at_once = now + COALESCE_S, AT_ONCE
        if self._at_once > 0 or len(self._buffer) >= READ_BYTES or self._eof:
            self._at_once -= 1
            self._deliver()
        elif self._flush is None:
            self._flush = self._loop.call_at(self._window_end, self._deliver)

    def _deliver(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._buffer:
            data, self._buffer = bytes(self._buffer), bytearray()
            self._events.on_output(data)

    # Writing

    def _write(self) -> None:
        while self._queue and not self._closed:
            writer, data = self._queue[0]
            try:
                count = os.write(self._master, data)
            except BlockingIOError:
                self._wait_to_write()
                return
            except OSError:
                self._discard_input()
                return
            if count < len(data):
                self._queue[0] = (writer, data[count:])
            else:
                self._queue.popleft()
            self._events.on_written(writer, count)
        self._stop_writing()

    def _wait_to_write(self) -> None:
        if not self._writing:
            self._writing = True
            self._loop.add_writer(self._master, self._write)

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._master)

    def _discard_input(self) -> None:
        self._stop_writing()
        while self._queue:
            writer, data = self._queue.popleft()
            self._events.on_written(writer, len(data))

    # The end

    async def _end(self) -> None:
        status = await asyncio.shield(self._child.exited)
        await self._drain()
        self.pause()
        self._deliver()
        self._discard_input()
        self._closed = True
        os.close(self._master)
        self._events.on_end(status)

    async def _drain(self) -> None:
        left_s = LINGER_S
        while not self._eof and left_s > 0:
            await asyncio.sleep(SILENCE_S / 4)
            if not self._reading:
                continue  # held back for a viewer: what is in the device is not lost
            left_s -= SILENCE_S / 4
            if self._loop.time() - self._read_at > SILENCE_S:
                return


def open_pty(
    children: Children,
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    account: Account | None,
    size: Dimensions,
    events: Callable[[], PtyEvents],
) -> Pty:
    """Start a program on a terminal of its own.

    Raises:
        OSError: the program or `cwd` cannot be used (`filename` says which), or there is no terminal device left.
    """
    master, slave = os.openpty()
    try:
        set_window_size(slave, rows=size.rows, cols=size.cols)
        _use_utf8(slave)
        if account is not None:
            with contextlib.suppress(OSError):  # programs that open it by name: tmux, gpg; not every driver lets us
                os.fchown(slave, account.uid, -1)
        child = children.spawn(
            argv,
            cwd=cwd,
            env=env,
            account=account,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            controlling_terminal=True,
        )
    except BaseException:
        os.close(master)
        raise
    finally:
        os.close(slave)
    os.set_blocking(master, False)
    return Pty(master, child, events())


def _use_utf8(slave: int) -> None:
    """Backspace in the kernel's own line editing takes a whole character then."""
    with contextlib.suppress(termios.error):
        attributes = termios.tcgetattr(slave)
        attributes[0] |= IUTF8
        termios.tcsetattr(slave, termios.TCSANOW, attributes)


IUTF8: Final = 0x4000
"""asm-generic/termbits.h; the termios module has no name for it."""
