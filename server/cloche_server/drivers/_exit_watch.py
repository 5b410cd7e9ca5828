"""Learn at once, and without being its parent, that a process ended, and how.

A pidfd becomes readable when its process ends, whoever the parent is; so a new server watches the sandboxes of a killed
one like its own. The exit status is in ``/proc/<pid>/stat`` until the parent (init) has reaped the process, and, since
Linux 6.15, in what the pidfd tells afterwards (PIDFD_GET_INFO with PIDFD_INFO_EXIT). On an older kernel with a
quick init there is no way to learn it, and it is reported as not known.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import struct
import time
from pathlib import Path
from typing import Final

PIDFD_GET_INFO: Final = 0xC040FF0B
"""_IOWR(0xFF, 11, struct pidfd_info) with the first published size, 64 bytes (linux/pidfd.h)."""

PIDFD_INFO_EXIT: Final = 1 << 3
_INFO: Final = struct.Struct("=QQ11Ii")
"""mask, cgroupid, eleven ids, exit_code."""

STATUS_BOUND_S: Final = 0.5
"""Between a process being a zombie and being reaped there is a moment when neither source answers."""


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
        """True for a zombie, too, and once it is closed: whoever closes it removes the process."""
        if self._pidfd < 0:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    async def ended(self) -> None:
        """Returns when the process has ended. Any number of tasks may wait."""
        if self.has_ended():
            return
        loop = asyncio.get_running_loop()
        copy = os.dup(self._pidfd)  # add_reader takes one reader per descriptor
        done = asyncio.Event()
        loop.add_reader(copy, done.set)
        try:
            await done.wait()
        finally:
            loop.remove_reader(copy)
            os.close(copy)

    def _read_status(self) -> int | None:
        status = read_zombie_status(self.pid, self._pidfd)
        return read_reaped_status(self._pidfd) if status is None else status

    async def wait_status(self) -> int | None:
        """The raw wait status of the ended process; None when this kernel does not tell, or it is closed meanwhile."""
        ends = time.monotonic() + STATUS_BOUND_S
        while self._pidfd >= 0:
            status = self._read_status()
            if status is not None or time.monotonic() > ends:
                return status
            await asyncio.sleep(0.005)
        return None


def read_zombie_status(pid: int, pidfd: int) -> int | None:
    """As `os.wait` gives it; None when the process is not a zombie (any more)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        signal.pidfd_send_signal(pidfd, 0)  # still not reaped, so the number was not given away: it was our process
    except OSError:
        return None
    return int(fields[-1]) if fields[0] == "Z" else None


def read_reaped_status(pidfd: int) -> int | None:
    """As `os.wait` gives it; None before the process is reaped, and on a kernel before 6.15."""
    request = bytearray(_INFO.pack(PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, request)
    except OSError:
        return None
    mask, *_, exit_code = _INFO.unpack(request)
    return exit_code if mask & PIDFD_INFO_EXIT else None
