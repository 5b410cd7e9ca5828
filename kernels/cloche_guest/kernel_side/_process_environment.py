"""The environment of a process that did not get it by exec."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping

MARK = "CLOCHE_KERNEL"
"""As in `contexts._leftovers`: by its mark in /proc/PID/environ the guest finds what a kernel has started."""


class EnvironmentMark:
    """Where Linux reads the mark of this process from: the memory that exec filled, which is not what `os.environ` changes.

    The zygote is started with a placeholder that is longer than any mark. Make it before anything changes the environment.
    """

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
