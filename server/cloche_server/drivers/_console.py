"""The console: the first 64 KiB of what the runtime and PID 1 wrote (`_launcher.open_console` bounds it)."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from cloche_server.drivers._cgroup import Cgroup
from cloche_server.drivers._layout import SandboxPaths

COMPLETE_BOUND_S: Final = 2.0
"""For the last words to reach the file: one pipe and one write, and the start of two programs where a runtime failed at once.
It is never over when the runtime's command alone was killed, and the sandbox runs on."""

_READERS: Final = (b"sh\0-c\0(ulimit", b"cat\0")
"""What `_launcher.open_console` starts."""


def open_first_words(paths: SandboxPaths) -> BinaryIO:
    """The console for a launcher that has not opened it yet: it says why it failed, a traceback at most. Nothing of the
    sandbox exists then, and the launcher begins the file anew for those that come."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
    return open(os.open(paths.console, flags, 0o600), "wb")


def read_console(paths: SandboxPaths) -> str:
    """Empty when there is none. Written by the guest: escape it before it is shown on a terminal."""
    try:
        return paths.console.read_text(errors="replace")
    except OSError:
        return ""


async def until_complete(cgroup: Cgroup) -> None:
    """The console's reader ends when its last writer does, and has written everything then."""
    with suppress(TimeoutError):
        async with asyncio.timeout(COMPLETE_BOUND_S):
            while any(_is_reader(command_line(pid)) for pid in cgroup.pids()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def _is_reader(line: bytes) -> bool:
    return line.startswith(_READERS) or b"/_launcher.py\0" in line  # forked, and not the shell yet


def command_line(pid: int) -> bytes:
    """Arguments, each with a zero behind it; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
