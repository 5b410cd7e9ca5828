"""A real guest in a process of its own, and a small client for it. Real kernels, no fakes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

Json = dict[str, Any]
TIMEOUT_S = 60.0
"""For everything that must happen: far more than it takes on a machine that is busy with much else."""
GRACE_S = 20.0
"""Of the shared context. Code that sleeps for longer and ends sooner, with its kernel alive, was interrupted."""

_MAIN = "from cloche_guest.__main__ import main; main()"


class Guest:
    """The guest's API, as plain calls."""

    def __init__(self, port: int, process: subprocess.Popen[bytes], home: Path) -> None:
        self.port = port
        self.process = process
        self.home = home
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=TIMEOUT_S * 2)

    def call(self, method: str, path: str, body: object = None, *, status: int | None = None) -> Json:
        """The JSON of an answer; `status` is the one expected (any 2xx when None)."""
        response = self.http.request(method, path, json=body)
        good = response.status_code == status if status else response.is_success
        assert good, f"{method} {path}: {response.status_code} {response.text[:2000]}"
        answer: Json = response.json()
        return answer

    def create(self, **body: Any) -> Context:
        created = self.call("POST", "/v1/contexts", {"cwd": str(self.home), **body}, status=201)
        return Context(self, created["id"])

    def health(self) -> Json:
        return self.call("GET", "/v1/health")


class Context:
    """One context."""

    def __init__(self, guest: Guest, context_id: str) -> None:
        self.guest = guest
        self.id = context_id
        self.path = f"/v1/contexts/{context_id}"

    def run(self, code: str, **body: Any) -> Json:
        """Run to the end and return the Run."""
        run = self.guest.call("POST", f"{self.path}/runs?wait_s=60", {"code": code, **body})
        assert run["state"] == "finished", run
        return run

    def ok(self, code: str, **body: Any) -> Json:
        run = self.run(code, **body)
        assert run["status"] == "ok", run
        return run

    def value(self, code: str, **body: Any) -> str:
        """``text/plain`` of the result."""
        return result(self.ok(code, **body))

    def submit(self, code: str, **body: Any) -> str:
        run = self.guest.call("POST", f"{self.path}/runs?wait_s=0", {"code": code, **body})
        return str(run["id"])

    def get(self, run_id: str, wait_s: float = 0) -> Json:
        return self.guest.call("GET", f"{self.path}/runs/{run_id}?wait_s={wait_s}")

    def wait(self, run_id: str) -> Json:
        run = self.get(run_id, 60)
        assert run["state"] == "finished", run
        return run

    def interrupt(self, run_id: str | None = None) -> Json:
        path = f"{self.path}/interrupt" if run_id is None else f"{self.path}/runs/{run_id}/interrupt"
        return self.guest.call("POST", path)

    def info(self) -> Json:
        return self.guest.call("GET", self.path)

    def variables(self) -> dict[str, Json]:
        answer = self.guest.call("GET", f"{self.path}/variables")
        return {variable["name"]: variable for variable in answer["variables"]}

    def delete(self) -> Json:
        return self.guest.call("DELETE", self.path)

    def events(self, run_id: str | None = None, cursor: str | None = None) -> Iterator[Json]:
        """Events over SSE, as they come."""
        path = f"{self.path}/events" if run_id is None else f"{self.path}/runs/{run_id}/events"
        with self.guest.http.stream("GET", path, params={"cursor": cursor} if cursor else {}) as response:
            assert response.status_code == 200, response.read()
            yield from parse_sse(response.iter_lines())

    def until(self, run_id: str, kind: str, **data: Any) -> Json:
        """The first event of that type (and with that data) of a run. Text may come in several events: see `_first`."""
        return self._first(self.events(run_id), kind, data)

    def context_until(self, kind: str, **data: Any) -> Json:
        """The first such event in the journal of the context."""
        return self._first(self.events(), kind, data)

    def websocket(self, run_id: str, cursor: str | None = None) -> ClientConnection:
        query = f"?cursor={cursor}" if cursor else ""
        return connect(f"ws://127.0.0.1:{self.guest.port}{self.path}/runs/{run_id}/events{query}", proxy=None)

    def _first(self, events: Iterator[Json], kind: str, data: Json) -> Json:
        """`text` is looked for in all text so far: a print makes two writes, which may become two events."""
        with contextlib.closing(events):  # type: ignore[type-var]
            text = data.pop("text", None)
            so_far = ""
            for event in events:
                if event["type"] != kind or any(event["data"].get(name) != value for name, value in data.items()):
                    continue
                so_far += event["data"].get("text", "")
                if text is None or text in so_far:
                    return event
        raise AssertionError(f"the stream ended without {kind} {data}")


def parse_sse(lines: Iterator[str]) -> Iterator[Json]:
    fields: dict[str, str] = {}
    for line in lines:
        if not line and fields:
            yield {"type": fields["event"], "cursor": fields["id"], "data": json.loads(fields["data"])}
            fields = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


def text(run: Json, stream: str = "stdout") -> str:
    return "".join(output["text"] for output in run["outputs"] if output["type"] == stream)


def result(run: Json) -> str:
    results = [output for output in run["outputs"] if output["type"] == "result"]
    assert len(results) == 1, run["outputs"]
    plain: str = results[0]["data"]["text/plain"]
    return plain


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """For facts outside the API, such as the end of a process: look until they are so."""
    end = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"waited {timeout_s} s for {what}"
        pause.wait(0.01)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def started_with(variable: str) -> list[int]:
    """Processes that run and have this in the environment that they were started with."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"\0{variable}\0".encode() in b"\0" + path.read_bytes() and is_running(int(path.parent.name)):
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def running_guest(*, before: str = "", **environ: str) -> Iterator[Guest]:
    """A guest on a loopback port, with a home of its own; ends with nothing left. `before`: code that runs in it first."""
    with tempfile.TemporaryDirectory(prefix="cg") as directory, open(Path(directory) / "log", "w+b") as log:
        home = Path(directory) / "home"
        home.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-c", f"{before}\n{_MAIN}", "--listen", "127.0.0.1:0"],
            env=guest_environ(Path(directory), home) | environ,
            stderr=log,
            stdout=log,
        )
        try:
            guest = Guest(_port(process, Path(directory) / "log"), process, home)
            with guest.http:
                yield guest
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(TIMEOUT_S)
            # A guest that was killed could not wait for them; and what still starts makes files in the directory.
            wait_for(lambda: not started_with(f"HOME={home}"), "all that it has started to end")
        said = (Path(directory) / "log").read_text()
        assert "Traceback" not in said, said


def guest_environ(directory: Path, home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return kept | {
        "HOME": str(home),
        "CLOCHE_GUEST_USER": "",
        "CLOCHE_GUEST_WORKSPACE": str(home),
        "CLOCHE_GUEST_RUNTIME_DIR": str(directory / "r"),
        "CLOCHE_GUEST_STATE_DIR": str(directory / "state"),
        "CLOCHE_GUEST_KERNEL_PYTHON": sys.executable,
        "PYTHONWARNINGS": "ignore",
    }


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    def said() -> bool:
        assert process.poll() is None, log.read_text()
        return "serving on" in log.read_text()

    wait_for(said, "the guest to serve")
    line = next(line for line in log.read_text().splitlines() if "serving on" in line)
    return int(line.rpartition(":")[2])
