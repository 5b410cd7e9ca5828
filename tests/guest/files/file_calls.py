"""Calls of the guest's files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
from guest_process import Guest, is_running, wait_for

from cloche.path_text import to_text

Json = dict[str, Any]
NOBODY = 65534


def url(name: str, path: str | bytes | Path, **query: Any) -> str:
    text = to_text(os.fsdecode(path))
    more = "".join(f"&{key}={quote(str(value), safe='')}" for key, value in query.items())
    return f"/v1/files/{name}?path={quote(text, safe='')}{more}"


def put(guest: Guest, path: str | bytes | Path, data: Any, headers: Json | None = None, **query: Any) -> httpx.Response:
    return guest.http.put(url("content", path, **query), content=data, headers=headers or {})


def get(guest: Guest, path: str | bytes | Path, **headers: str) -> httpx.Response:
    return guest.http.get(url("content", path), headers={k.replace("_", "-"): v for k, v in headers.items()})


def code(response: httpx.Response) -> str:
    assert response.is_error, response.text
    return str(response.json()["code"])


def post(guest: Guest, name: str, path: str | Path, **body: Any) -> httpx.Response:
    return guest.http.post(f"/v1/files/{name}", json={"path": to_text(os.fsdecode(path)), **body})


def worker_pid(guest: Guest) -> int:
    out = subprocess.run(["pgrep", "-P", str(guest.process.pid), "-f", "files.worker"], capture_output=True, check=True)
    return next(pid for pid in map(int, out.stdout.split()) if is_running(pid))


def unmount(path: Path) -> None:
    """A file that the worker has just answered about may still be open there."""
    wait_for(lambda: subprocess.run(["umount", str(path)], check=False).returncode == 0, f"{path} to be let go")
