"""The console: the first 64 KiB of what the runtime and PID 1 wrote (`_launcher.open_console` bounds it)."""

from __future__ import annotations

import os
from typing import BinaryIO

from cloche_server.drivers._layout import SandboxPaths


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
