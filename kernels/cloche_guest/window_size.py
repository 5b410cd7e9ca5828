"""The size of a terminal's window, and telling the programs in it.

Linux sends SIGWINCH to the foreground group of a terminal whose size changes. The pinned runsc keeps the size and tells
nobody, so the whole session is told here; who does not care about SIGWINCH ignores it by default.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import termios


def set_window_size(terminal: int, *, rows: int, cols: int, session: int | None = None) -> None:
    """``session``: id of the session that the terminal controls, None while there is none."""
    size = struct.pack("HHHH", rows, cols, 0, 0)
    before = fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(len(size)))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
    if session is not None and before != size and not _kernel_tells(terminal):
        _tell(session)


def _kernel_tells(master: int) -> bool:
    """A kernel that cannot name the foreground group of a master does not signal it either (ENOTTY under gVisor)."""
    try:
        os.tcgetpgrp(master)
    except OSError:
        return False
    return True


def _tell(session: int) -> None:
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(name)) == session:
                os.kill(int(name), signal.SIGWINCH)
