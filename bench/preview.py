"""``bench preview``: an app through its preview, against the same client beside the app in the sandbox."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from bench._bare_in_sandbox import USER_PYTHON
from bench._preview_link import preview_link
from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client, Sandbox

PORT: Final = 8000
ROUNDS: Final = 4
"""Both clients take turns, so that a busy machine is busy for both."""

WHAT: Final = ("GET", "GET, new connection", "WebSocket echo", "download 64 MiB", "upload 64 MiB")


def measure(client: Client, image: str | None, driver: str, n: int, large: int) -> list[Table]:
    """One table for each thing, each with its ratio to direct."""
    direct = {what: Samples("direct") for what in WHAT}
    through = {what: Samples("preview") for what in WHAT}
    with Sandbox.create(image, client=client, driver=driver) as sandbox:
        app = sandbox.processes.start([USER_PYTHON, "-c", _source("_preview_app.py"), str(PORT)])
        app.wait_for_port(PORT)
        outside = _orders_outside(sandbox, n, large)
        for _ in range(ROUNDS):
            _add(
                direct,
                _run_inside(sandbox, {"port": PORT, "headers": {"Host": f"localhost:{PORT}"}, **_counts(n, large)}),
            )
            _add(through, _run_outside(outside))
    return [Table(f"{what} on {driver}", rows_of([direct[what], through[what]], "direct"), "direct") for what in WHAT]


def _counts(n: int, large: int) -> dict[str, int]:
    return {"n": max(1, n // ROUNDS), "large": max(1, large // ROUNDS)}


def _orders_outside(sandbox: Sandbox, n: int, large: int) -> dict[str, Any]:
    link = preview_link(sandbox, PORT)
    return {"port": link.port, "headers": {"Host": link.host, "Cookie": link.cookie}, **_counts(n, large)}


def _run_inside(sandbox: Sandbox, orders: dict[str, Any]) -> dict[str, list[float]]:
    done = sandbox.exec([USER_PYTHON, "-c", _source("_preview_client.py")], input=json.dumps(orders) + "\n")
    done.raise_for_error()
    return _parsed(done.stdout)


def _run_outside(orders: dict[str, Any]) -> dict[str, list[float]]:
    command = [sys.executable, "-c", _source("_preview_client.py")]
    said = subprocess.run(command, input=json.dumps(orders) + "\n", capture_output=True, text=True, check=True)
    return _parsed(said.stdout)


def _parsed(text: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = json.loads(text)
    return found


def _add(samples: dict[str, Samples], found: dict[str, list[float]]) -> None:
    for what, seconds in found.items():
        for each in seconds:
            samples[what].add_s(each)


def _source(name: str) -> str:
    return (Path(__file__).parent / name).read_text()
