"""sys.stdout and sys.stderr of a kernel: one buffer in order, bounded, safe to fork.

What stock ipykernel does differently, and why it is not enough here:

* It keeps one buffer per stream, so text of stdout and stderr changes places. Here both share one list of segments.
* Its buffer has no bound. Here a writer whose text piles up waits until it is sent: with XPUB_NODROP on the socket the
  pressure of a slow reader reaches the code that prints, and nobody's memory grows.
* A forked child sends its prints over a tcp connection to 127.0.0.1 and stalls for 3 s a print when ``lo`` is down.
  Here it writes to its file descriptor, which is captured, and arrives with the parent of the cell that forked.
* ``fileno()`` is the real stdout of the kernel, so output of ``subprocess.run(..., stdout=sys.stdout)`` is lost.
"""

# Most of ipykernel has no annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ipykernel.iostream import OutStream

MAX_PENDING_CHARS = 256 * 1024
"""Text that may wait before a writer has to: two messages' worth."""

MESSAGE_CHARS = 128 * 1024
"""Longest text of one stream message. A 100 MB print must not become one 100 MB message on the other side."""

LULL_S = 0.0002
"""Between two writes in which a child process may have written, too: none is started and waited for in less (0.5 ms on the
quickest machine tried). Looking at each write would make a loop of prints three times as slow under gVisor."""

Header = dict[str, Any]


class Segments:
    """Written text, in order, as runs of equal stream and parent. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._segments: list[tuple[str, Header, list[str]]] = []
        self._taken = 0  # segments, ever
        self._is_marked = False  # behind the last one
        self._chars = 0
        self.sending = False  # taken, but not yet handed to the socket
        self.written_s = 0.0

    @property
    def is_empty(self) -> bool:
        """Everything written so far is with the socket."""
        return not self._segments and not self.sending

    def add(self, name: str, parent: Header, text: str) -> int:
        """Returns the number of characters waiting now."""
        with self._lock:
            last = self._segments[-1] if self._segments and not self._is_marked else None
            if last is not None and last[1] is parent and last[0] == name:
                last[2].append(text)
            else:
                self._segments.append((name, parent, [text]))
                self._is_marked = False
            self._chars += len(text)
            return self._chars

    def mark(self) -> int:
        """The place behind what is written now, for `take`."""
        with self._lock:
            self._is_marked = True
            return self._taken + len(self._segments)

    def take(self, mark: int) -> list[tuple[str, Header, str]]:
        """What waits before the mark."""
        with self._lock:
            count = max(0, mark - self._taken)
            self.sending = count > 0  # first: `is_empty` looks without the lock
            taken, self._segments = self._segments[:count], self._segments[count:]
            self._taken += count
            texts = [(name, parent, "".join(parts)) for name, parent, parts in taken]
            self._chars -= sum(len(text) for _, _, text in texts)
        return texts

    def after_fork(self) -> None:
        """A forked child must not send again what its parent will send, and the lock may be held by nobody."""
        self.__init__()  # type: ignore[misc]


SEGMENTS = Segments()
os.register_at_fork(after_in_child=SEGMENTS.after_fork)


class KernelStream(OutStream):
    """One of the two streams. ``catch_up`` passes on what was written to the descriptors before."""

    catch_up: Callable[[], None] = staticmethod(lambda: None)

    flush_interval = 0.05
    """Seconds until printed text is sent by itself: a person watching sees it as live."""

    def __init__(self, session: Any, pub_thread: Any, name: str, **options: Any) -> None:
        options["watchfd"] = False
        self._descriptor = {"stdout": 1, "stderr": 2}[name]
        self._child_line = ""
        super().__init__(session, pub_thread, name, **options)

    def fileno(self) -> int:
        return self._descriptor

    def write(self, string: str) -> int:
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string).__name__}")
        if self.pub_thread is None:
            raise ValueError("I/O operation on closed file")
        if os.getpid() != self._master_pid:
            self._write_in_child(string)
            return len(string)
        now = time.monotonic()
        if now - SEGMENTS.written_s > LULL_S:
            self.catch_up()
        SEGMENTS.written_s = now
        if 0 < len(string) <= MESSAGE_CHARS:  # the usual print, of which there may be millions
            if SEGMENTS.add(self.name, self.parent_header, string) > MAX_PENDING_CHARS:
                self.flush()
            elif not self._flush_pending:
                self._schedule_flush()
        elif string:
            self._add(self.parent_header, string)
        return len(string)

    def write_for(self, parent: Header, text: str) -> None:
        """Write with the parent of some cell: for captured descriptors. Never waits for the main thread."""
        if self.pub_thread is not None:
            self._add(parent, text)

    def flush(self) -> None:
        """Return when everything written so far is with the socket. Without text it costs nothing (ipykernel flushes
        six times a cell, and each time waits for another thread)."""
        if os.getpid() != self._master_pid:
            self._flush_in_child()
        elif not SEGMENTS.is_empty:
            super().flush()

    def _write_in_child(self, text: str) -> None:
        """Whole lines in one write each, so that the lines of several workers do not mix."""
        self._child_line += text
        if "\n" in text or len(self._child_line) > MESSAGE_CHARS:
            self._flush_in_child()

    def _flush_in_child(self) -> None:
        line, self._child_line = self._child_line, ""
        _write_all(self._descriptor, line.encode("utf-8", "backslashreplace"))

    def _add(self, parent: Header, text: str) -> None:
        """Add text of any length in pieces, with a flush whenever too much waits: even one huge print is bounded."""
        for start in range(0, len(text), MESSAGE_CHARS):
            if SEGMENTS.add(self.name, parent, text[start : start + MESSAGE_CHARS]) > MAX_PENDING_CHARS:
                self.flush()
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        """Flush in `flush_interval`. The timer queues the flush behind what is queued already: a display made before the
        text must stay before it."""
        if self._flush_pending:
            return
        self._flush_pending = True
        thread = self.pub_thread
        thread.schedule(
            lambda: self._io_loop.call_later(self.flush_interval, lambda: thread.schedule(self._flush)),
        )

    @property
    def _flush(self) -> Callable[[], None]:
        """What ipykernel queues for the IOPub thread, or calls there: it sends what was written when it was queued. Text of
        a moment later may have to wait for a display that was queued between the two."""
        return functools.partial(self._send_until, SEGMENTS.mark())

    def _send_until(self, mark: int) -> None:
        """Of both streams."""
        self._flush_pending = False
        try:
            for name, parent, text in SEGMENTS.take(mark):
                for start in range(0, len(text), MESSAGE_CHARS):
                    self._send(name, parent, text[start : start + MESSAGE_CHARS])
        finally:
            SEGMENTS.sending = False
        if not SEGMENTS.is_empty:
            self._schedule_flush()

    def _send(self, name: str, parent: Header, text: str) -> None:
        self.session.pid = os.getpid()
        socket, ident = _Direct(self.pub_thread), b"stream." + name.encode()
        try:
            self.session.send(socket, "stream", {"name": name, "text": text}, parent=parent, ident=ident)
        except UnicodeError:  # lone surrogates, as in names of files; dropping the text would be worse than an escape
            text = text.encode("utf-8", "backslashreplace").decode()
            self.session.send(socket, "stream", {"name": name, "text": text}, parent=parent, ident=ident)


class _Direct:
    """Sends from inside the IOPub thread, without queueing: a writer that waits for the flush waits for the socket."""

    def __init__(self, pub_thread: Any) -> None:
        self.send_multipart = pub_thread._really_send


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def streams() -> tuple[KernelStream, KernelStream] | None:
    """The two streams, unless user code has replaced one of them."""
    if isinstance(sys.stdout, KernelStream) and isinstance(sys.stderr, KernelStream):
        return sys.stdout, sys.stderr
    return None
