"""Environment and command line of a process that did not get them by exec.

Linux and gVisor show the memory that exec filled, in which both lie one behind the other; changing `os.environ` or
`sys.argv` does not change it. The zygote is started with room for both.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

MARK = "CLOCHE_KERNEL"
"""As in `contexts._leftovers`: by its mark in /proc/PID/environ the guest finds what a kernel has started."""


class Shown:
    """Both, of one process. Make it before anything changes the environment."""

    def __init__(self) -> None:
        self._command_line, self._mark = CommandLine(), EnvironmentMark()

    def write(self, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        """These arguments, and the mark of `env`."""
        self._command_line.write(arguments)
        self._mark.write(env)


class CommandLine:
    """What `ps` shows. Make it before anything changes the environment."""

    def __init__(self) -> None:
        shown = Path("/proc/self/cmdline").read_bytes()
        first = ctypes.cast(
            ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")[0] or 0, ctypes.c_void_p
        )
        start = (first.value or 0) - len(shown)
        self._size = len(shown)
        self._start = start if start > 0 and ctypes.string_at(start, len(shown)) == shown else 0
        self._before = shown.split(b"\0")

    def write(self, arguments: Sequence[str]) -> None:
        """These behind the program and its script, as far as there is room."""
        line = b"\0".join([*self._before[:2], *map(os.fsencode, arguments)])[: self._size - 1]
        if self._start:
            ctypes.memmove(self._start, line.ljust(self._size, b"\0"), self._size)


class EnvironmentMark:
    """The mark in the environment. Make it before anything changes the environment."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_void_p
        self._address: int | None = libc.getenv(MARK.encode())
        self._size = len(ctypes.string_at(self._address)) if self._address else 0

    def write(self, env: Mapping[str, str]) -> None:
        """Put the mark of `env` there."""
        mark = env.get(MARK, "").encode()
        if self._address and len(mark) <= self._size:
            ctypes.memmove(self._address, mark.ljust(self._size, b"\0"), self._size)


def replace_environment(env: Mapping[str, str]) -> None:
    """As exec does it."""
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
