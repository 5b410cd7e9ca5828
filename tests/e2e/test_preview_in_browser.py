"""Previews in a real browser: Vite with hot reload, and an app with a WebSocket, on both drivers.

The sandbox has no network and no Node: the node of this machine and an installed Vite are carried in, through a preview.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest

from .browser import Page, browser_page
from .conftest import DRIVERS
from .installed import FETCH_S, vite_modules
from .server_process import ServerProcess
from .test_previews import PYTHON, Site

NODE = shutil.which("node")

UNPACK = """
import http.server, tarfile
class Body:
    def __init__(self, file, size):
        self.file, self.left = file, size
    def read(self, count):
        data = self.file.read(min(count, self.left))
        self.left -= len(data)
        return data
class Unpack(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_PUT(self):
        body = Body(self.rfile, int(self.headers["Content-Length"]))
        with tarfile.open(fileobj=body, mode="r|") as archive:
            archive.extractall("/workspace")
        while body.read(65536):  # tarfile stops at the end's mark; closed with the rest unread, the answer might be lost
            pass
        self.close_connection = True
        self.send_response(204)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 9000), Unpack).serve_forever()
"""

INDEX = '<!doctype html><title>x</title><p id="text"></p><script type="module" src="/main.js"></script>'
MAIN = """
import { text } from './text.js'
const show = value => { document.getElementById('text').textContent = value }
show(text)
import.meta.hot.accept('./text.js', changed => show(changed.text))
import.meta.hot.on('test:watching', () => { window.watching = true })
import.meta.hot.send('test:watching')
"""

CONFIG = """
export default { plugins: [{ name: 'test', configureServer(server) {
  server.ws.on('test:watching', (_, client) => {
    const timer = setInterval(() => {
      if (!(server.watcher.getWatched()[server.config.root] ?? []).includes('text.js')) return
      clearInterval(timer)
      client.send('test:watching')
    }, 20)
  })
} }] }
"""
"""The page hears of a change when its WebSocket is open and Vite has begun to watch the file. Both come after the page is
shown, and a change before that is seen by nobody; so it asks, over that WebSocket."""

pytestmark = pytest.mark.timeout(2 * FETCH_S + 180)
"""The first test may have to fetch what it carries in."""


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("vite") / "tree.tar"
    with tarfile.open(made, "w") as tree:
        tree.add(vite_modules(), "site/node_modules")
        tree.add(os.path.realpath(str(NODE)), "node")
    return made


@pytest.fixture(scope="module", params=DRIVERS)
def site(request: pytest.FixtureRequest, server: ServerProcess, archive: Path) -> Iterator[Site]:
    """A sandbox with node, Vite and a small page in /workspace."""
    with server.client() as client:
        response = client.post("/v1/sandboxes", json={"driver": request.param})
        assert response.status_code == 201, response.text
        made = Site(server, client, response.json()["id"], 9000)
        made.api("POST", made.path, {})
        start(made, [PYTHON, "-c", UNPACK], 9000)
        with made.visitor(Authorization=f"Bearer {server.key}") as visitor, archive.open("rb") as file:
            answer = visitor.put("/", content=pieces(file), headers={"Content-Length": str(archive.stat().st_size)})
            assert answer.status_code == 204, answer.text
        texts = {
            "vite.config.mjs": CONFIG,
            "index.html": INDEX,
            "main.js": MAIN,
            "text.js": "export const text = 'first'",
        }
        for name, text in texts.items():
            write(made, f"/workspace/site/{name}", text)
        yield made
        client.delete(made.base)


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(1 << 20):
        yield piece


def start(site: Site, argv: list[str], port: int, cwd: str = "/workspace") -> None:
    process = site.api("POST", f"{site.base}/processes", {"argv": argv, "cwd": cwd})
    condition = {"type": "port", "port": port}
    body = {"conditions": [condition], "timeout_s": 60}
    waited = site.client.post(f"{site.base}/processes/{process['id']}/wait", json=body, timeout=90)
    assert waited.is_success, waited.text
    assert waited.json()["met"], waited.text


def write(site: Site, path: str, text: str) -> None:
    code = f"open({path!r}, 'w').write({text!r})"
    done = site.api("POST", f"{site.base}/exec", {"argv": [PYTHON, "-c", code]})
    assert done["process"]["exit"]["code"] == 0, done


@pytest.fixture
def page() -> Iterator[Page]:
    with browser_page() as made:
        yield made


def test_vite_reloads_modules_through_a_private_preview(site: Site, page: Page) -> None:
    """cloudflare/sandbox-sdk#917 and #129: hot reload did not work through a preview."""
    vite = Site(site.server, site.client, site.sandbox_id, 5173)
    vite.api("POST", vite.path, {})
    link = vite.api("POST", f"{vite.path}/token", {})["url"]
    page.open(link)
    page.wait_for("document.querySelector('h1')?.textContent", "Waiting for port 5173")
    start(
        site,
        ["/workspace/node", "node_modules/vite/bin/vite.js", "--port", "5173", "--strictPort"],
        5173,
        "/workspace/site",
    )
    page.wait_for("document.getElementById('text')?.textContent", "first")  # the waiting page has made way by itself
    assert page.value("location.href") == f"http://{vite.host}/"
    assert page.value("document.cookie") == ""
    page.wait_for("window.watching", True)
    page.value("window.same = true")
    write(site, "/workspace/site/text.js", "export const text = 'second'")
    page.wait_for("document.getElementById('text').textContent", "second")
    assert page.value("window.same") is True  # the module came, the page stayed


def test_a_page_talks_over_a_websocket_to_its_app(site: Site, page: Page) -> None:
    app = Site(site.server, site.client, site.sandbox_id, 8000)
    app.api("POST", app.path, {})
    app.start_app()
    page.open(app.api("POST", f"{app.path}/token", {})["url"])
    page.wait_for("document.body?.innerText.includes('localhost:8000')", True)
    page.value(
        "window.said = []; window.ws = new WebSocket(`ws://${location.host}/socket`);"
        "ws.onmessage = e => { said.push(e.data); if (said.length === 1) ws.send('hello') };"
        "ws.onclose = e => said.push(e.code); 0"
    )
    page.wait_for("said[1]", "hello")
    assert page.value("JSON.parse(said[0]).origin") == "http://localhost:8000"
    page.value("ws.send('close')")
    page.wait_for("said[2]", 4321)
    # The API is another origin to this page, and lets it do nothing.
    api = f"http://127.0.0.1:{site.server.port}/v1/sandboxes"
    refused = page.value(f"fetch('{api}', {{method: 'POST', body: '{{}}'}}).then(r => r.status, e => 'refused')")
    assert refused == "refused"
    with httpx.Client(trust_env=False) as stranger:
        assert stranger.post(api, json={}, headers={"Origin": f"http://{app.host}"}).status_code in {401, 403}
