"""Learn at once, and without being its parent, that a process ended, and how.

A pidfd becomes readable when its process ends, whoever the parent is; so a new server watches the sandboxes of a killed
one like its own. Linux 6.15 added the exit status to what a pidfd tells (PIDFD_GET_INFO with PIDFD_INFO_EXIT); on older
kernels the status of a process that is not our child cannot be had, and is reported as not known.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import struct
from contextlib import suppress
from typing import Final

PIDFD_GET_INFO: Final = 0xC040FF0B
"""_IOWR(0xFF, 11, struct pidfd_info) with the first published size, 64 bytes (linux/pidfd.h)."""

PIDFD_INFO_EXIT: Final = 1 << 3
_INFO: Final = struct.Struct("=QQ11Ii")
"""mask, cgroupid, eleven ids, exit_code."""

REAP_BOUND_S: Final = 0.5
"""The status appears when the parent (init) has reaped the process: microseconds, if init does its work."""


class ExitWatch:
    """Owns one pidfd. `ProcessLookupError` from the constructor when there is no such process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)

    def close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def has_ended(self) -> bool:
        """True for a zombie, too."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    async def ended(self) -> None:
        """Returns when the process has ended. Any number of tasks may wait."""
        if self.has_ended():
            return
        loop = asyncio.get_running_loop()
        copy = os.dup(self._pidfd)  # add_reader takes one reader per descriptor
        done = loop.create_future()
        loop.add_reader(copy, lambda: done.done() or done.set_result(None))
        try:
            await done
        finally:
            loop.remove_reader(copy)
            os.close(copy)

    async def wait_status(self) -> int | None:
        """The raw wait status of the ended process; None when this kernel does not tell."""
        with suppress(TimeoutError):
            async with asyncio.timeout(REAP_BOUND_S):
                while (status := read_wait_status(self._pidfd)) is None:
                    await asyncio.sleep(0.005)
                return status
        return None


def read_wait_status(pidfd: int) -> int | None:
    """As `os.wait` gives it; None before the process is reaped, and on a kernel before 6.15."""
    request = bytearray(_INFO.pack(PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, request)
    except OSError:
        return None
    mask, *_, exit_code = _INFO.unpack(request)
    return exit_code if mask & PIDFD_INFO_EXIT else None
