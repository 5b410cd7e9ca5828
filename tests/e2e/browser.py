"""Debian's Chromium without a window, spoken to over its DevTools protocol: as much as the tests need."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

CHROMIUM = Path("/usr/bin/chromium")
BOUND_S = 60.0

PATIENT: dict[str, Any] = {"open_timeout": BOUND_S, "ping_interval": None}
"""The answers have a bound each; a browser that is busy for long is not gone."""


class Page:
    """One tab."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 0

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=BOUND_S))
            if message.get("id") == self._number:
                return message.get("result", {})

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Of JavaScript; promises are awaited. None while the page changes."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return None if "exceptionDetails" in result else result.get("result", {}).get("value")

    def wait_for(self, expression: str, wanted: object) -> None:
        deadline = time.monotonic() + BOUND_S
        while (found := self.value(expression)) != wanted:
            shown = "" if time.monotonic() < deadline else self.value("document.body.innerText")
            assert time.monotonic() < deadline, f"{expression} is {found!r}, not {wanted!r}; the page: {shown}"
            time.sleep(0.05)


@contextmanager
def browser_page() -> Iterator[Page]:
    """A fresh browser with one tab; `*.localhost` is this machine to it, as to every browser."""
    with tempfile.TemporaryDirectory(prefix="clb", dir="/tmp", ignore_cleanup_errors=True) as profile:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        process = subprocess.Popen(
            [str(CHROMIUM), *flags, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"HOME": profile, "PATH": "/usr/bin:/bin"},
        )
        try:
            with connect(_tab(Path(profile), process), proxy=None, max_size=None, **PATIENT) as socket:
                yield Page(socket)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(BOUND_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def _tab(profile: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + BOUND_S
    said = profile / "DevToolsActivePort"
    while not (said.exists() and said.read_text().count("\n")):
        assert process.poll() is None, "the browser ended"
        assert time.monotonic() < deadline, "the browser did not start"
        time.sleep(0.05)
    port = said.read_text().split("\n")[0]
    while True:  # it listens before it has a tab
        tabs = httpx.get(f"http://127.0.0.1:{port}/json/list", trust_env=False, timeout=BOUND_S).json()
        pages = [str(tab["webSocketDebuggerUrl"]) for tab in tabs if tab["type"] == "page"]
        if pages:
            return pages[0]
        assert time.monotonic() < deadline, f"the browser has no tab: {tabs}"
        time.sleep(0.05)
