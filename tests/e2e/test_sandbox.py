"""Real sandboxes through the real server."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx

from .server_process import ServerProcess, descriptors, memory_kib

Make = Callable[..., str]


def run(client: httpx.Client, sandbox_id: str, code: str, **body: object) -> dict[str, object]:
    response = client.post(f"/v1/sandboxes/{sandbox_id}/contexts/default/runs?wait_s=60", json={"code": code, **body})
    assert response.status_code == 200, response.text
    return dict(response.json())


def text(result: dict[str, object]) -> str:
    return "".join(o.get("text") or o["data"]["text/plain"] for o in result["outputs"])  # type: ignore[attr-defined]


def test_cells_build_on_each_other(client: httpx.Client, make_sandbox: Make, driver: str) -> None:
    sandbox_id = make_sandbox(driver=driver, env={"GREETING": "hello"})
    shown = client.get(f"/v1/sandboxes/{sandbox_id}").json()
    assert (shown["driver"], shown["state"]) == (driver, "running")
    run(client, sandbox_id, "import os; x = os.environ['GREETING']")
    assert text(run(client, sandbox_id, "x + '!'")) == "'hello!'"


def command_lines() -> bytes:
    """Of every process of this machine."""
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += path.read_bytes() + b"\n"
    return found


def test_values_of_the_environment_arrive_exactly_and_are_in_nobodys_command_line(
    client: httpx.Client, make_sandbox: Make, driver: str
) -> None:
    """superradcompany/microsandbox#1364: double quotes were corrupted; #997: secrets were in command lines of the host, for
    everybody to see. e2b-dev/E2B#1154: a single quote began another command."""
    secret = uuid.uuid4().hex  # not in a command line of somebody who looks for the word
    value = f'it\'s "a" {secret}; $HOME `id` \\ \u00e9\n\tend '
    sandbox_id = make_sandbox(driver=driver, env={"VALUE": value})
    assert text(run(client, sandbox_id, "import os; print(repr(os.environ['VALUE']), end='')")) == repr(value)
    body = {"argv": ["printenv", "VALUE"]}
    done = client.post(f"/v1/sandboxes/{sandbox_id}/exec", json=body).json()
    assert done["stdout"]["data"]["text"] == value + "\n"
    seen = command_lines()
    assert sandbox_id.encode() in seen or b"cloche_guest" in seen
    assert secret.encode() not in seen


def test_the_strongest_driver_is_the_default_and_is_named(server: ServerProcess, client: httpx.Client) -> None:
    info = client.get("/v1/info").json()
    works = [report["name"] for report in info["drivers"] if report["works"]]
    assert info["default_driver"] == works[0] == "gvisor"
    assert "driver: gvisor (" in server.said
    assert server.key not in server.said
    assert server.key not in server.log.read_text()


def test_a_sandbox_whose_first_process_is_killed_says_so(
    client: httpx.Client, make_sandbox: Make, driver: str, server: ServerProcess
) -> None:
    sandbox_id = make_sandbox(driver=driver)
    pid = int((server.directory / "run" / driver / sandbox_id / "pid").read_text())
    run(client, sandbox_id, "1")
    with ThreadPoolExecutor() as pool:
        path = f"/v1/sandboxes/{sandbox_id}/contexts/default/runs"
        waiting = pool.submit(client.post, path, json={"code": "import time; time.sleep(60)"})
        until(lambda: any(s["state"] == "running" for s in client.get(path).json()["runs"]))
        os.kill(pid, signal.SIGKILL)
        answer = waiting.result().json()
    assert (answer["code"], answer["details"]["state"]) == ("sandbox_not_running", "failed")
    shown = client.get(f"/v1/sandboxes/{sandbox_id}").json()
    assert shown["state"] == "failed"
    assert shown["failure"]["reason"] in {"signal", "exit", "lost"}
    call = client.get(f"/v1/sandboxes/{sandbox_id}/contexts")
    assert call.json()["code"] == "sandbox_not_running"
    assert not (server.directory / "run" / "uplinks" / sandbox_id).exists()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


DIAL = """
import json, socket
said = []
for line in {lines!r}:
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(10)
    try:
        s.connect("/run/cloche/uplink.sock")
        s.sendall(line.encode())
        said.append(s.recv(1000).decode())
    except OSError as error:
        said.append(type(error).__name__)
print(json.dumps(said))
"""


def test_a_guest_under_user_control_cannot_hurt_the_server(
    client: httpx.Client, make_sandbox: Make, driver: str, server: ServerProcess
) -> None:
    """Root inside the sandbox dials the uplink itself: without the session it is nobody."""
    sandbox_id = make_sandbox(driver=driver)
    hello = {
        "protocol": 2,
        "sandbox_id": sandbox_id,
        "epoch": "e",
        "guest_epoch": "g",
        "token": "t",
        "session": "s" * 32,
    }
    lines = ["x" * 100_000, "{}\n", json.dumps(hello) + "\n"]
    said = json.loads(text(run(client, sandbox_id, DIAL.format(lines=lines))))
    assert all('identity":{' not in line for line in said), said
    assert text(run(client, sandbox_id, "1 + 1")) == "2"
    assert server.process is not None
    assert server.process.poll() is None


def test_memory_and_descriptors_of_the_server_stay_flat(
    client: httpx.Client, make_sandbox: Make, server: ServerProcess
) -> None:
    pid = server.pid
    sandbox_id = make_sandbox(driver="runc")
    big = "print('x' * 1_000_000)"
    for _ in range(10):
        run(client, sandbox_id, big)
    memory, open_files = memory_kib(pid), descriptors(pid)
    for _ in range(100):
        run(client, sandbox_id, big)
    assert memory_kib(pid) < memory + 30_000
    until(lambda: descriptors(pid) <= open_files + 4)  # connections that end just now are counted for a moment


def test_a_client_that_goes_away_ends_no_run(client: httpx.Client, make_sandbox: Make, driver: str) -> None:
    sandbox_id = make_sandbox(driver=driver)
    url = f"/v1/sandboxes/{sandbox_id}/contexts/default/runs"
    body = {"code": "import time\nfor n in range(10): print(n); time.sleep(0.1)\ndone = True"}
    with client.stream("POST", url, json=body, headers={"Accept": "text/event-stream"}) as response:
        run_id = response.headers["Cloche-Run-Id"]
        next(response.iter_raw())
    finished = client.get(f"{url}/{run_id}?wait_s=60").json()
    assert (finished["status"], text(finished).split()) == ("ok", [str(n) for n in range(10)])
    assert text(run(client, sandbox_id, "done")) == "True"
