"""The server is killed or stopped; sandboxes, kernels, runs and streams go on."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import httpx_sse
import pytest

from .conftest import short_directory
from .inside import write
from .server_process import ServerProcess

COUNT = 25
CODE = f"""
import os, time
answer = 42
for n in range({COUNT}):
    while n == {COUNT} - 1 and not os.path.exists('/workspace/go'):
        time.sleep(0.02)
    print(n, flush=True)
    time.sleep(0.06)
"""
"""It prints on while the server is away, and ends after it came back, however slow that is."""


def make(client: httpx.Client, driver: str) -> str:
    response = client.post("/v1/sandboxes", json={"driver": driver})
    assert response.status_code == 201, response.text
    return f"/v1/sandboxes/{response.json()['id']}"


def events(client: httpx.Client, url: str, cursor: str | None) -> Iterator[httpx_sse.ServerSentEvent]:
    headers = {"Last-Event-ID": cursor} if cursor else {}
    with httpx_sse.connect_sse(client, "GET", url, headers=headers) as source:
        assert source.response.status_code == 200, source.response.read()
        yield from source.iter_sse()


def run(client: httpx.Client, sandbox: str, code: str) -> dict[str, object]:
    response = client.post(f"{sandbox}/contexts/default/runs?wait_s=60", json={"code": code})
    assert response.status_code in {200, 202}, response.text
    return dict(response.json())


def texts(seen: list[httpx_sse.ServerSentEvent]) -> str:
    return "".join(json.loads(event.data)["text"] for event in seen if event.event == "stdout")


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_run_and_its_stream_survive_the_server(own_server: ServerProcess, driver: str, how: str) -> None:
    """No event is lost, none comes twice, and the variables are where they were."""
    with own_server.client() as client:
        sandbox = make(client, driver)
        started = client.post(f"{sandbox}/contexts/default/runs?wait_s=0", json={"code": CODE})
        assert started.status_code == 202
        url = f"{sandbox}/contexts/default/runs/{started.json()['id']}/events"
        seen: list[httpx_sse.ServerSentEvent] = []
        ended = False
        try:
            for event in events(client, url, None):
                if event.event == "failure":
                    assert json.loads(event.data)["code"] == "connection_failed"
                    assert how == "stop"
                    break
                seen.append(event)
                if not ended and len(texts(seen).split()) > 6:
                    getattr(own_server, how)()
                    ended = True
        except httpx.TransportError:
            assert how == "kill"
    assert "finished" not in {event.event for event in seen}
    own_server.start()
    assert "sandboxes found again: 1, lost: 0" in own_server.said
    with own_server.client() as client:
        write(client, sandbox.rpartition("/")[2], "/workspace/go", "")
        seen += events(client, url, seen[-1].id)
        assert seen[-1].event == "finished"
        assert json.loads(seen[-1].data)["status"] == "ok"
        assert texts(seen).split() == [str(n) for n in range(COUNT)]
        assert len({event.id for event in seen}) == len(seen)
        assert run(client, sandbox, "answer")["outputs"][0]["data"] == {"text/plain": "42"}  # type: ignore[index]
        assert client.delete(sandbox).status_code == 200


def test_a_kill_during_creates_leaves_nothing_half_made(own_server: ServerProcess, driver: str) -> None:
    """Whatever moment it hits, afterwards a sandbox either runs or there is nothing of it but a row that says so."""

    def create(n: int) -> None:
        try:
            with own_server.client() as client:
                client.post("/v1/sandboxes", json={"driver": driver, "name": f"box{n}"})
        except httpx.TransportError:
            pass

    with ThreadPoolExecutor(4) as pool:
        for n in range(4):
            pool.submit(create, n)
        time.sleep(1.2)
        own_server.kill()
    own_server.start()
    with own_server.client() as client:
        items = client.get("/v1/sandboxes").json()["items"]
        running = [item["id"] for item in items if item["state"] == "running"]
        assert {item["state"] for item in items} <= {"running", "failed"}
        run_dir = own_server.directory / "run"
        assert sorted(path.name for path in (run_dir / "uplinks").glob("*")) == sorted(running)
        assert sorted(path.name for path in (run_dir / driver).glob("*")) == sorted(running)
        for sandbox_id in running:
            assert run(client, f"/v1/sandboxes/{sandbox_id}", "1")["status"] == "ok"
        again = client.post("/v1/sandboxes", json={"driver": driver, "name": "box-new"})
        assert again.status_code == 201


def test_a_stop_is_quick_and_says_so(own_server: ServerProcess) -> None:
    began = time.monotonic()
    assert own_server.stop() == 0
    assert time.monotonic() - began < 15
    assert any("stopping; sandboxes go on" in line for line in own_server.log_lines())


def test_a_second_server_in_the_same_directory_is_refused(own_server: ServerProcess) -> None:
    second = ServerProcess(own_server.directory)
    with pytest.raises(AssertionError, match="another server"):
        second.start()


def test_a_machine_without_a_driver_gets_no_server(image: str) -> None:
    assert image
    broken = {"CLOCHE_RUNSC": "/bin/false", "CLOCHE_RUNC": "/bin/false"}
    server = ServerProcess(short_directory(), environ=broken)
    with pytest.raises(AssertionError, match="no driver works on this machine"):
        server.start()
    assert server.process is not None
    assert server.process.returncode == 1
    shutil.rmtree(server.directory)
