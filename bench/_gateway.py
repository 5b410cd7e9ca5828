"""Jupyter Kernel Gateway on this machine, in an environment of its own that is made on demand.

It runs beside the sandboxes, not in one: its kernel has no isolation at all, which is to its advantage.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from websockets.sync.client import ClientConnection, connect

REQUIREMENTS: Final = ("jupyter_kernel_gateway==3.0.1", "ipykernel==7.4.0", "jupyter_client==8.10.0")


def environment(requirements: Sequence[str] = REQUIREMENTS) -> Path:
    """A Python environment with these packages; made the first time, which takes about half a minute."""
    cache = Path(os.environ.get("CLOCHE_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "cloche-bench" / "-".join(requirements).replace("=", "")
    if not (place / "complete").exists():
        print(f"installing {requirements[0]} into {place}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        pip = [str(place / "bin/pip"), "--disable-pip-version-check", "install", "--quiet", *requirements]
        if (done := subprocess.run(pip, capture_output=True, text=True, check=False)).returncode:
            raise RuntimeError(f"{' '.join(pip)} failed:\n{done.stderr}")
        (place / "complete").touch()
    return place


class Gateway:
    """A gateway, one kernel of it and the WebSocket to that kernel."""

    def __init__(self) -> None:
        self._home = tempfile.TemporaryDirectory()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._process = subprocess.Popen(
            [str(environment() / "bin/jupyter"), "kernelgateway", "--ip=127.0.0.1", f"--port={self._port}"],
            env={**os.environ, "HOME": self._home.name, "JUPYTER_PLATFORM_DIRS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._socket: ClientConnection | None = None

    def __enter__(self) -> Self:
        kernel = self._new_kernel()
        self._socket = connect(
            f"ws://127.0.0.1:{self._port}/api/kernels/{kernel}/channels", proxy=None, max_size=None, open_timeout=30
        )
        self.round_trip_s("pass")
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)
        self._home.cleanup()

    def round_trip_s(self, code: str) -> float:
        """Execute ``code`` and wait for the reply and for `idle`."""
        assert self._socket is not None
        message_id = secrets.token_hex(16)
        started = time.perf_counter()
        self._socket.send(json.dumps(_execute_request(message_id, code)))
        waiting = {"execute_reply", "idle"}
        while waiting:
            message = json.loads(self._socket.recv(timeout=30))
            if message["parent_header"].get("msg_id") == message_id:
                waiting -= {message["header"]["msg_type"], message["content"].get("execution_state")}
        return time.perf_counter() - started

    def _new_kernel(self) -> str:
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/api/kernels", data=b"{}", method="POST")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + 60
        while True:
            try:
                with opener.open(request, timeout=60) as answer:
                    return str(json.load(answer)["id"])
            except urllib.error.URLError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.1)


def _execute_request(message_id: str, code: str) -> dict[str, Any]:
    header = {
        "msg_id": message_id, "msg_type": "execute_request", "username": "", "session": message_id, "version": "5.3",
        "date": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}
    return {
        "header": header,
        "parent_header": {},
        "metadata": {},
        "content": content,
        "channel": "shell",
        "buffers": [],
    }
