"""The page of a terminal in a real browser: web/test/browser.mjs does the clicking."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from .server_process import ServerProcess

WEB = Path(__file__).parents[2] / "web"


@pytest.mark.timeout(300)
def test_a_terminal_in_a_browser(
    server: ServerProcess, client: httpx.Client, make_sandbox: Callable[..., str], tmp_path: Path
) -> None:
    sandbox_id = make_sandbox(driver="runc")
    made = client.post(f"/v1/sandboxes/{sandbox_id}/terminals", json={})
    assert made.status_code == 201, made.text
    terminal_id = made.json()["id"]
    page = f"/ui/terminal?sandbox={sandbox_id}&terminal={terminal_id}"
    login = client.post("/v1/browser/logins", json={"next": page}).json()["path"]
    share = client.post(f"/v1/sandboxes/{sandbox_id}/terminals/{terminal_id}/share", json={}).json()["path"]
    command = ["node", str(WEB / "test" / "browser.mjs"), server.url + login, str(tmp_path), server.url + share]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == 10
    assert (tmp_path / "terminal.png").stat().st_size > 5000
