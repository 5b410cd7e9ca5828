"""The console: the first 64 KiB of what the runtime and PID 1 wrote (`_launcher.open_console` bounds it)."""

from __future__ import annotations

from cloche_server.drivers._layout import SandboxPaths


def read_console(paths: SandboxPaths) -> str:
    """Empty when there is none. Written by the guest: escape it before it is shown on a terminal."""
    try:
        return paths.console.read_text(errors="replace")
    except OSError:
        return ""
