"""Waiting until a peer that was just started takes connections."""

from __future__ import annotations

import socket
import subprocess
import time


def wait_listening(port: int, process: subprocess.Popen[bytes], bound_s: float) -> None:
    """`OSError` when ``process`` ends, or nothing listens on the loopback port after ``bound_s``."""
    deadline = time.monotonic() + bound_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise
            time.sleep(0.05)
        else:
            return
