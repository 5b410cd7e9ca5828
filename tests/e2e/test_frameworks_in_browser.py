"""What people serve from a sandbox, FastAPI and Flask, through its preview and in a real browser, on both drivers.

Sandboxes have no network: wheels are carried in and installed there.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cloche import Client, Preview, Sandbox

from .browser import Page, browser_page
from .conftest import DRIVERS
from .installed import FETCH_S, SITES, wheels
from .server_process import ServerProcess

INSTALL = "pip install --quiet --no-index --find-links wheels --require-hashes -r requirements.txt"

pytestmark = pytest.mark.timeout(2 * FETCH_S + 180)
"""The first test may have to fetch what it carries in."""


@pytest.fixture(scope="module", params=DRIVERS)
def sandbox(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Sandbox]:
    """With both frameworks installed, and both apps in /workspace."""
    with Client(server.url, server.key) as client, Sandbox.create(client=client, driver=request.param) as made:
        made.files.upload_tree(wheels(), "wheels")
        for name in ("requirements.txt", "fastapi_app.py", "flask_app.py"):
            made.files.upload(SITES / name, name)
        made.exec(INSTALL, timeout_s=240).raise_for_error()
        yield made


@pytest.fixture
def page() -> Iterator[Page]:
    with browser_page() as made:
        yield made


def serve(sandbox: Sandbox, command: str, port: int, path: str) -> Preview:
    """In the background, until it answers."""
    process = sandbox.processes.start(f"exec python -m {command} --port {port}")
    process.wait_for_port(port, protocol="http", path=path, timeout_s=60)
    return sandbox.preview(port)


def test_fastapi_with_a_websocket(sandbox: Sandbox, page: Page) -> None:
    preview = serve(sandbox, "uvicorn fastapi_app:app --host 127.0.0.1", 8000, "/openapi.json")
    page.open(preview.token_url)
    page.wait_for("document.getElementById('sum')?.textContent", "9")
    page.wait_for("JSON.stringify(window.said)", '["GRÜSSE",4321]')
    # The token has brought a cookie, which is ours: neither the page nor the app sees it.
    assert page.value("location.href") == preview.url
    assert page.value("document.cookie") == ""
    seen = page.value("fetch('/seen').then(answer => answer.json())")
    assert seen == {"url": "http://localhost:8000/seen", "cookies": {}}


def test_flask_with_a_session_and_events(sandbox: Sandbox, page: Page) -> None:
    preview = serve(sandbox, "flask --app flask_app run", 5000, "/")
    page.open(preview.token_url)
    page.wait_for("JSON.stringify(window.heard)", '["first","second"]')
    assert page.value("document.getElementById('name').textContent") == "nobody"
    page.value("document.forms[0].submit()")
    # The app's own cookie is kept, and the address it redirects to, made from what it takes itself for, is reached.
    page.wait_for("document.getElementById('name')?.textContent", "Ada")
    assert page.value("location.href") == preview.url


def test_who_has_no_token_sees_nothing(sandbox: Sandbox, page: Page) -> None:
    preview = serve(sandbox, "uvicorn fastapi_app:app --host 127.0.0.1", 8001, "/openapi.json")
    page.open(preview.url)
    page.wait_for("document.title", "Cloche preview")
    page.open(preview.token_url)
    page.wait_for("document.title", "FastAPI")
