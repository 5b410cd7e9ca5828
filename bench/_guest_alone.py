"""Cloche's guest on this machine, without server and sandbox: what of a time is its own, against peers that have neither."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from types import TracebackType
from typing import Final, Self

from bench._listening import wait_listening
from cloche._attachment import Attachment, Where
from cloche._patience import Patience

START_S: Final = 30


class GuestAlone:
    """Serves on a loopback port, in a directory of its own."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cloche_guest", "--listen", f"127.0.0.1:{self._port}"],
            env=self._environ(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        wait_listening(self._port, self._process, START_S)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)
        self._home.cleanup()

    def attach(self, command: list[str], *, record: bool = True) -> Attachment:
        """A new terminal with this program, attached."""
        base = f"127.0.0.1:{self._port}/v1/terminals"
        body = json.dumps({"argv": command, "record": record}).encode()
        order = urllib.request.Request(f"http://{base}", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(order) as answer:
            terminal_id = json.load(answer)["id"]
        return Attachment(Where(f"ws://{base}/{terminal_id}/attach", {}), Patience())

    def _environ(self) -> dict[str, str]:
        home = self._home.name
        return {
            **os.environ,
            "HOME": home,
            "CLOCHE_GUEST_USER": "",
            "CLOCHE_GUEST_WORKSPACE": home,
            "CLOCHE_GUEST_RUNTIME_DIR": f"{home}/run",
            "CLOCHE_GUEST_STATE_DIR": f"{home}/state",
            "CLOCHE_GUEST_KERNEL_PYTHON": sys.executable,
        }
