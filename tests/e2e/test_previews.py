"""Ports and previews of real sandboxes, on both drivers: a real server, a real app, real connections."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from . import preview_app
from .conftest import DRIVERS
from .server_process import ServerProcess, descriptors, memory_kib

SOURCE = Path(preview_app.__file__).read_text()
PYTHON = "/opt/venv/bin/python"
MIB = 1024 * 1024


@dataclass
class Site:
    """A sandbox, an app in it on ``port``, and a private preview of that."""

    server: ServerProcess
    client: httpx.Client
    sandbox_id: str
    port: int = 8000

    @property
    def base(self) -> str:
        return f"/v1/sandboxes/{self.sandbox_id}"

    @property
    def path(self) -> str:
        return f"{self.base}/previews/{self.port}"

    @property
    def host(self) -> str:
        return f"{self.port}-{self.sandbox_id}.localhost:{self.server.port}"

    def api(self, method: str, path: str, body: object = None) -> Any:
        response = self.client.request(method, path, json=body)
        assert response.is_success, response.text
        return response.json()

    def start_app(self, *arguments: str) -> str:
        command = [PYTHON, "-c", SOURCE, str(self.port), *arguments]
        process = self.api("POST", f"{self.base}/processes", {"argv": command})
        condition = {"type": "port", "port": self.port}
        waited = self.api(
            "POST", f"{self.base}/processes/{process['id']}/wait", {"conditions": [condition], "timeout_s": 60}
        )
        assert waited["met"], waited
        return str(process["id"])

    def token(self) -> str:
        return str(self.api("POST", f"{self.path}/token", {})["token"])

    def cookie(self) -> str:
        response = self.get(f"/?cloche_token={self.token()}", Accept="text/html")
        assert response.status_code == 302, response.text
        return response.headers["Set-Cookie"].partition(";")[0]

    def visitor(self, **headers: str) -> httpx.Client:
        """Whoever resolves *.localhost as browsers do; many libraries do not."""
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.server.port}",
            headers={"Host": self.host, **headers},
            trust_env=False,
            timeout=60,
        )

    def get(self, target: str, **headers: str) -> httpx.Response:
        with self.visitor(**headers) as visitor:
            return visitor.get(target)

    def socket(self, target: str, **options: Any) -> ClientConnection:
        uri = f"ws://{self.host}{target}"
        made = socket.create_connection(("127.0.0.1", self.server.port))
        try:
            return connect(uri, sock=made, proxy=None, max_size=64 * MIB, open_timeout=60, **options)
        except BaseException:
            made.close()
            raise


@pytest.fixture(scope="module", params=DRIVERS)
def site(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Site]:
    with server.client() as client:
        response = client.post("/v1/sandboxes", json={"driver": request.param})
        assert response.status_code == 201, response.text
        made = Site(server, client, response.json()["id"])
        made.api("POST", made.path, {})
        made.start_app()
        yield made
        client.delete(made.base)


@pytest.fixture
def visitor(site: Site) -> Iterator[httpx.Client]:
    with site.visitor(Cookie=site.cookie()) as made:
        yield made


def seen_headers(answer: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in answer["headers"]}


# Ports


def test_ports_are_listed_with_who_holds_them(site: Site) -> None:
    listed = {item["port"]: item for item in site.api("GET", f"{site.base}/ports")["items"]}
    assert listed[8000]["addresses"] == ["127.0.0.1"]
    assert listed[8000]["process"]["command"].startswith(PYTHON)
    processes = site.api("GET", f"{site.base}/processes")["items"]
    assert listed[8000]["process"]["pid"] in [process["pid"] for process in processes]


def test_opening_and_closing_are_events(site: Site) -> None:
    code = "import socket, time; s = socket.create_server(('127.0.0.1', 8123)); time.sleep(1000)"
    with site.client.stream("GET", f"{site.base}/events") as response:
        process = site.api("POST", f"{site.base}/processes", {"argv": [PYTHON, "-c", code]})
        wanted = ["port_opened", "port_closed"]
        kind = ""
        for line in response.iter_lines():
            kind = line.removeprefix("event: ") if line.startswith("event: ") else kind
            if line.startswith("data: ") and kind == wanted[0] and json.loads(line[6:])["port"] == 8123:
                wanted.pop(0)
                if not wanted:
                    break
                site.api("DELETE", f"{site.base}/processes/{process['id']}")
    assert not wanted


# The app's view


def test_a_link_a_cookie_and_then_the_app(site: Site, visitor: httpx.Client) -> None:
    assert site.get("/").status_code == 404
    answer = visitor.get("/page")
    assert answer.status_code == 200
    assert answer.headers["Set-Cookie"] == "app=1; Path=/"
    headers = seen_headers(answer.json())
    assert headers["host"] == "localhost:8000"
    assert "cookie" not in headers
    key = site.get("/", Authorization=f"Bearer {site.server.key}")
    assert key.status_code == 200
    assert site.server.key not in key.text


def test_path_and_query_arrive_byte_for_byte(site: Site) -> None:
    """daytonaio/daytona#4448: the proxy decoded percent-encoded paths."""
    target = "/a%2Fb//%E2%82%AC/../%2e%2e/;x=1/%25?q=%2B+%20&&=&%zz&a=http://x/?"
    connection = http.client.HTTPConnection("127.0.0.1", site.server.port)
    connection.putrequest("GET", target, skip_host=True)
    connection.putheader("Host", site.host)
    connection.putheader("Cookie", site.cookie())
    connection.endheaders()
    assert json.loads(connection.getresponse().read())["line"] == f"GET {target}"
    connection.close()


def test_errors_redirects_and_methods_are_the_apps(site: Site, visitor: httpx.Client) -> None:
    for status in (204, 304, 404, 418, 500, 503):
        answer = visitor.get(f"/status/{status}")
        assert answer.status_code == status
        assert answer.text == ("" if status in (204, 304) else "the app's own page")
    assert visitor.get("/redirect").headers["Location"] == f"http://{site.host}/there?a=%20b"
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = visitor.request(method, "/x", content=b"1234")
        assert (answer.json()["line"], answer.json()["size"]) == (f"{method} /x", 4)
    assert visitor.head("/status/418").status_code in (405, 418)


# Bodies


@pytest.mark.parametrize("length", ["yes", "no"])
def test_a_large_download_is_identical_and_memory_stays_flat(site: Site, visitor: httpx.Client, length: str) -> None:
    """superradcompany/microsandbox#914: response bytes were dropped under back-pressure."""
    size = 128 * MIB
    assert site.server.process is not None
    before = memory_kib(site.server.process.pid)
    digest, pause = hashlib.sha256(), threading.Event()
    with visitor.stream("GET", f"/download?size={size}&length={length}") as response:
        for number, part in enumerate(response.iter_raw()):
            digest.update(part)
            if number == 20:
                pause.wait(0.3)
    expected = hashlib.sha256()
    for _ in range(size // len(preview_app.BLOCK)):
        expected.update(preview_app.BLOCK)
    assert digest.digest() == expected.digest()
    assert memory_kib(site.server.process.pid) - before < 32 * 1024


@pytest.mark.parametrize("chunked", [True, False])
def test_a_large_upload_is_identical_and_memory_stays_flat(site: Site, visitor: httpx.Client, chunked: bool) -> None:
    """With a length, above the bounds the API has for its own bodies (8 MiB, and 256 MiB that are drained)."""
    size, piece = (96 if chunked else 264) * MIB, preview_app.BLOCK * 16
    assert site.server.process is not None
    before = memory_kib(site.server.process.pid)
    headers = {} if chunked else {"Content-Length": str(size)}
    answer = visitor.post("/upload", content=(piece for _ in range(size // len(piece))), headers=headers).json()
    expected = hashlib.sha256()
    for _ in range(size // len(piece)):
        expected.update(piece)
    assert answer == {"sha256": expected.hexdigest(), "size": size}
    assert memory_kib(site.server.process.pid) - before < 32 * 1024


def test_events_come_when_they_are_sent(visitor: httpx.Client) -> None:
    with visitor.stream("GET", "/events") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        lines = response.iter_lines()
        assert next(lines) == "data: first"
        visitor.post("/next")
        assert [line for line in lines if line] == ["data: second"]


def test_many_requests_at_once_leave_nothing_behind(site: Site) -> None:
    assert site.server.process is not None
    cookie = site.cookie()
    before = descriptors(site.server.process.pid)

    def some(number: int) -> bool:
        with site.visitor(Cookie=cookie) as visitor:
            answers = [visitor.get(f"/{number}/{count}").json()["line"] for count in range(10)]
        return answers == [f"GET /{number}/{count}" for count in range(10)]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(some, range(32)))
    pid = site.server.process.pid
    wait_until(lambda: descriptors(pid) <= before + 8)


def test_an_app_learns_that_its_visitor_went_away(site: Site) -> None:
    """And nothing of the connection is left in the sandbox. An app of its own: the gateway keeps idle connections to the
    other one for some seconds."""
    held = Site(site.server, site.client, site.sandbox_id, 8002)
    held.api("POST", held.path, {})
    process = held.start_app()
    with socket.create_connection(("127.0.0.1", site.server.port)) as visitor:
        visitor.sendall(f"GET /hold HTTP/1.1\r\nHost: {held.host}\r\nCookie: {held.cookie()}\r\n\r\n".encode())
        wait_until(lambda: "held" in app_output(held))
        assert connections_in(held) == 1
    wait_until(lambda: "the visitor went away" in app_output(held))
    wait_until(lambda: connections_in(held) == 0)
    site.api("DELETE", f"{site.base}/processes/{process}")


def connections_in(site: Site) -> int:
    """Established connections to the app, as the sandbox' kernel has them."""
    port = f":{site.port:04X}"
    code = f"print(sum(l.split()[1].endswith({port!r}) and l.split()[3] == '01' for l in open('/proc/net/tcp')))"
    done = site.api("POST", f"{site.base}/exec", {"argv": [PYTHON, "-c", code]})
    return int(done["stdout"]["data"]["text"])


def wait_until(condition: Callable[[], bool], bound_s: float = 60) -> None:
    deadline = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# WebSocket


def test_a_websocket_lives_long_with_text_and_binary_frames(site: Site) -> None:
    """cloudflare/sandbox-sdk#240 and #689: WebSockets failed, or were closed with 1011 after the first frame."""
    with site.socket("/socket", additional_headers={"Cookie": site.cookie()}) as ws:
        assert json.loads(ws.recv())["type"] == "connected"
        for number in range(200):
            ws.send(f"text {number} ä")
            assert ws.recv() == f"text {number} ä"
        data = preview_app.BLOCK * 128
        ws.send(data)
        assert ws.recv() == data
        time.sleep(1)
        ws.send(b"\x00\xff after a silence")
        assert ws.recv() == b"\x00\xff after a silence"
        assert ws.ping().wait(60)


def test_close_codes_pass_in_both_directions(site: Site) -> None:
    cookie = {"Cookie": site.cookie()}
    with site.socket("/socket", additional_headers=cookie) as ws:
        ws.recv()
        ws.send("close")
        with pytest.raises(ConnectionClosed) as closed:
            ws.recv(timeout=60)
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4321, "as you wish")
    with site.socket("/socket", additional_headers=cookie) as ws:
        ws.recv()
        ws.close(4567, "enough")
    wait_until(lambda: "socket closed with 4567" in app_output(site))


def app_output(site: Site) -> str:
    return "".join(
        site.client.get(f"{site.base}/processes/{process['id']}/output").text
        for process in site.api("GET", f"{site.base}/processes")["items"]
        if process["state"] == "running"
    )


def test_a_private_websocket_has_a_way_in_and_no_way_around(site: Site) -> None:
    """daytonaio/daytona#4117: it was redirected to a login page, and there was no path for a token."""
    for target, headers in (
        ("/socket", {}),
        ("/socket?cloche_token=clt_x", {}),
        ("/socket", {"Cookie": "cloche_preview=x"}),
    ):
        with pytest.raises(InvalidStatus) as refused:
            site.socket(target, additional_headers=headers)
        assert refused.value.response.status_code == 404
    with pytest.raises(InvalidStatus) as refused:
        site.socket("/socket", additional_headers={"Cookie": site.cookie()}, origin="http://evil.example")  # type: ignore[arg-type]
    assert refused.value.response.status_code == 403
    with site.socket(f"/socket?cloche_token={site.token()}") as ws:
        assert json.loads(ws.recv())["type"] == "connected"


def test_the_client_of_vite_connects(site: Site, visitor: httpx.Client) -> None:
    """cloudflare/sandbox-sdk#917: plain requests said localhost and upgrades the public name, so hot reload never came.

    What Vite's client does: a WebSocket to the page's own host with the subprotocol vite-hmr and the browser's Origin.
    Its server takes Host localhost only, and the app here refuses an Origin that is not its Host.
    """
    with site.socket(
        "/socket?token=hmr-token",
        additional_headers={"Cookie": site.cookie()},
        origin=f"http://{site.host}",  # type: ignore[arg-type]
        subprotocols=["vite-hmr"],  # type: ignore[list-item]
    ) as ws:
        assert ws.subprotocol == "vite-hmr"
        connected = json.loads(ws.recv())
    page = seen_headers(visitor.get("/", headers={"Origin": f"http://{site.host}"}).json())
    assert connected == {"type": "connected", "host": "localhost:8000", "origin": "http://localhost:8000"}
    assert (page["host"], page["origin"]) == ("localhost:8000", "http://localhost:8000")


# Life


def test_a_page_waits_for_its_port_and_outlives_its_program(site: Site) -> None:
    """cloudflare/sandbox-sdk#829: a URL was "stale" although everything was well again; TanStack/ai#992: one of before the
    restart was kept and led nowhere."""
    other = Site(site.server, site.client, site.sandbox_id, 8001)
    other.api("POST", other.path, {})
    cookie = other.cookie()
    waiting = other.get("/", Cookie=cookie, Accept="text/html")
    assert (waiting.status_code, waiting.headers["Retry-After"]) == (503, "1")
    assert "Waiting for port 8001" in waiting.text
    assert other.get("/", Cookie=cookie).json()["code"] == "port_closed"
    process = other.start_app("::1")  # where Node's servers listen when told "localhost"
    assert other.get("/", Cookie=cookie).status_code == 200
    other.api("DELETE", f"{site.base}/processes/{process}")
    assert other.get("/", Cookie=cookie).status_code in {502, 503}
    process = other.start_app()
    assert other.get("/", Cookie=cookie).status_code == 200
    other.api("DELETE", f"{site.base}/processes/{process}")


def test_revoking_ends_what_is_open(site: Site) -> None:
    cookie = site.cookie()
    with site.socket("/socket", additional_headers={"Cookie": cookie}) as ws:
        ws.recv()
        site.api("DELETE", f"{site.path}/tokens")
        with pytest.raises(ConnectionClosed):
            ws.recv(timeout=60)
    assert site.get("/", Cookie=cookie).status_code == 404
    assert site.get("/", Cookie=site.cookie()).status_code == 200


def test_one_sandbox_cannot_be_seen_with_the_cookie_of_another(site: Site, make_sandbox: Callable[..., str]) -> None:
    other = Site(site.server, site.client, make_sandbox(driver="runc"))
    other.api("POST", other.path, {})
    assert other.get("/", Cookie=site.cookie()).status_code == 404
    assert other.get("/", Cookie=other.cookie()).status_code == 503


def test_links_and_cookies_outlive_the_server(own_server: ServerProcess) -> None:
    """cloudflare/sandbox-sdk#597 and #600: tokens did not survive a restart."""
    with own_server.client() as client:
        sandbox_id = client.post("/v1/sandboxes", json={"driver": "runc"}).json()["id"]
        site = Site(own_server, client, sandbox_id)
        site.api("POST", site.path, {})
        site.start_app()
        cookie, token = site.cookie(), site.token()
        own_server.kill()
        own_server.start()
        assert site.get("/", Cookie=cookie).status_code == 200
        assert site.get(f"/?cloche_token={token}").status_code == 200
        client.delete(site.base)
        assert site.get("/", Cookie=cookie).status_code == 404
