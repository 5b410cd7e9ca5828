"""What tests of snapshots and forks do inside of sandboxes, by the API alone."""

from __future__ import annotations

import os
from typing import Any

import httpx

FULL = bool(os.environ.get("CLOCHE_TEST_FULL"))
"""The sizes of the issue instead of those that keep the suite quick; for one file at a time, it takes long."""


def run(client: httpx.Client, sandbox_id: str, code: str) -> str:
    """Code in the default context; what it printed."""
    answer = client.post(f"/v1/sandboxes/{sandbox_id}/contexts/default/runs?wait_s=60", json={"code": code})
    assert answer.status_code == 200, answer.text
    done = answer.json()
    assert done["status"] == "ok", done
    return "".join(output["text"] for output in done["outputs"] if output["type"] == "stdout").strip()


def write(client: httpx.Client, sandbox_id: str, path: str, text: str) -> None:
    answer = client.put(
        f"/v1/sandboxes/{sandbox_id}/files/content", params={"path": path, "parents": "true"}, content=text.encode()
    )
    assert answer.status_code in (200, 201), answer.text


def read(client: httpx.Client, sandbox_id: str, path: str) -> str:
    answer = client.get(f"/v1/sandboxes/{sandbox_id}/files/content", params={"path": path})
    assert answer.status_code == 200, answer.text
    return answer.text


def serve(client: httpx.Client, sandbox_id: str, port: int, directory: str) -> None:
    """A web server that runs on."""
    argv = ["python3", "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", directory]
    path = f"/v1/sandboxes/{sandbox_id}/processes"
    started = client.post(path, json={"argv": argv})
    assert started.status_code == 201, started.text
    waiting = {"conditions": [{"type": "port", "port": port}], "timeout_s": 60}
    waited = client.post(f"{path}/{started.json()['id']}/wait", json=waiting)
    assert waited.json()["met"], waited.text


def fetch(client: httpx.Client, sandbox_id: str, port: int, name: str) -> str:
    """What that web server says now."""
    body = {"argv": ["curl", "-sS", "--max-time", "50", f"http://127.0.0.1:{port}/{name}"], "timeout_s": 60}
    answer = client.post(f"/v1/sandboxes/{sandbox_id}/exec", json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    assert result["process"]["exit"]["code"] == 0, result
    return str(result["stdout"]["data"]["text"])


def snapshot(client: httpx.Client, sandbox_id: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/sandboxes/{sandbox_id}/snapshots", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def fork(client: httpx.Client, sandbox_id: str, **body: Any) -> list[str]:
    """The ids of the children, all of which are there."""
    answer = client.post(f"/v1/sandboxes/{sandbox_id}/fork", json=body)
    assert answer.status_code == 201, answer.text
    children = answer.json()["children"]
    assert all(child["error"] is None for child in children), children
    return [child["sandbox"]["id"] for child in children]
