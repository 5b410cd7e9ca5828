"""Output written to file descriptors 1 and 2: by C code, by child processes, by forked children.

Every cell that may be confused with an earlier one gets pipes of its own. A child process keeps the pipe of the cell
that started it for as long as it lives, so its output carries that cell's parent even when it comes an hour later.

A new pair of pipes is needed only when a process may still hold the old one. That is so when the kernel has a child
it has not waited for, or when it has waited for one since the last pair (a daemon that forked twice leaves its old
parent behind). Both questions cost one system call; most cells start no process and keep the pipes.

One thread reads all pipes. `drain` empties the current ones from whoever needs it, so that everything a finished child
has written is sent before what is printed next and before the cell's reply: no grace time is needed on the other side.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import resource
import select
import signal
import threading
from dataclasses import dataclass, field
from typing import Any

from ._output import Header, KernelStream

CHUNK = 64 * 1024
"""A pipe holds 64 KiB by default on Linux."""


@dataclass(eq=False)
class _Pipe:
    """The reading end of one pipe, and whose output comes out of it."""

    descriptor: int
    stream: KernelStream
    parent: Header
    decoder: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    lock: Any = field(default_factory=threading.RLock)
    """Taken again by a finaliser or signal handler that prints meanwhile."""

    def read(self) -> bool | None:
        """Pass one chunk on. True: there was one; False: nothing now; None: all writers are gone."""
        with self.lock:
            try:
                data = os.read(self.descriptor, CHUNK)
            except BlockingIOError:
                return False
            text = self.decoder.decode(data, final=not data)
            if text:
                self.stream.write_for(self.parent, text)
            return True if data else None


class Capture:
    """Owns descriptors 1 and 2 from `start` on."""

    def __init__(self, stdout: KernelStream, stderr: KernelStream) -> None:
        self._streams = {1: stdout, 2: stderr}
        self._current: dict[int, _Pipe] = {}
        self._readers: dict[int, _Pipe] = {}
        self._poll = select.epoll()
        self._children = _children_waited_for()
        self._pid = os.getpid()
        self._life: int | None = None

    def end_with(self, life: int) -> None:
        """Kill this process when the other end of the pipe `life` is closed: for a kernel whose parent is not the guest."""
        self._life = life
        self._poll.register(life, select.EPOLLIN)

    def start(self) -> None:
        """Take over the descriptors and read them in a thread."""
        self._renew({})
        for stream in self._streams.values():
            stream.catch_up = self.drain
        threading.Thread(target=self._read_for_ever, name="cloche-capture", daemon=True).start()

    def begin(self, parent: Header) -> None:
        """From now on output belongs to the cell `parent`, but for processes that hold an earlier pipe."""
        waited = _children_waited_for()
        if waited != self._children or _has_children():
            self._children = waited
            self._renew(parent)
            return
        for pipe in self._current.values():
            with pipe.lock:
                pipe.parent = parent

    def begin_again(self) -> None:
        """`begin`, of the cell to which output belongs already."""
        self.begin(self._current[1].parent)

    def drain(self) -> None:
        """Pass on everything that is in the current pipes; returns with it in the streams' buffer."""
        if os.getpid() != self._pid:
            return
        for pipe in self._current.values():
            while pipe.read():
                pass

    def _renew(self, parent: Header) -> None:
        self.drain()
        for descriptor, stream in self._streams.items():
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            os.dup2(writing, descriptor)
            os.close(writing)
            pipe = _Pipe(reading, stream, parent)
            self._current[descriptor] = self._readers[reading] = pipe
            self._poll.register(reading, select.EPOLLIN)

    def _read_for_ever(self) -> None:
        while True:
            for descriptor, _ in self._poll.poll():
                with contextlib.suppress(Exception):  # a broken stream must not end the capture of the others
                    self._read_some(descriptor)

    def _read_some(self, descriptor: int) -> None:
        if descriptor == self._life:
            os.kill(self._pid, signal.SIGKILL)
        pipe = self._readers[descriptor]
        if pipe.read() is None:
            self._poll.unregister(descriptor)
            del self._readers[descriptor]
            os.close(descriptor)


def _children_waited_for() -> tuple[int, float]:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_minflt, usage.ru_utime + usage.ru_stime


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
