"""The gateway between a real server and apps of the tests' own making: who gets in, and what gets through."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import pytest

from cloche.models import Role
from cloche_server.preview import _exchange, _service

from ..conftest import Harness
from .visitor import Answer, RecordingApp, Seen, Stage, plain, read_answer, saying, saying_and_hanging_up

UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
ACCEPTED = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)


@pytest.fixture
async def stage(cloche: Harness) -> Stage:
    made = Stage(cloche, await cloche.sandbox())
    response = await cloche.client.post(made.path, json={})
    assert response.json()["visibility"] == "private"
    assert response.json()["url"] == f"http://{made.host}/"
    return made


def without_id(answer: Answer) -> tuple[int, bytes, list[str]]:
    body = re.sub(rb"req-[0-9a-f]{16}", b"req", answer.body)
    return answer.status, body, sorted(name for name, _ in answer.headers)


# Who gets in


async def test_whoever_is_not_let_in_cannot_tell_why(stage: Stage) -> None:
    """security.md 4, item 9: no oracle."""
    app = saying(plain())
    await stage.use(app)
    other = Stage(stage.cloche, await stage.cloche.sandbox())
    await stage.cloche.client.post(other.path, json={})
    foreign = await other.token()
    expired = await stage.token(1)
    stage.cloche.server.services.previews._clock = lambda: _service.now_us() + 2_000_000
    host = f"{stage.sandbox_id}.localhost:{stage.cloche.server.port}"
    answers = [
        await stage.get("/"),
        await stage.get(f"/?cloche_token={foreign}"),
        await stage.get(f"/?cloche_token={expired}"),
        await stage.get("/?cloche_token="),
        await stage.get("/", "Cookie: cloche_preview=clt_x"),
        await stage.get("/", f"Authorization: Bearer {stage.cloche.key('somebody')}"),
        await stage.get("/", f"Authorization: Bearer {stage.cloche.key('admin', Role.VIEWER)}"),
        await stage.get("/", "Authorization: Bearer clk_unknownunknownunknown"),
        await stage.request("GET", "/", host=f"8001-{host}"),
        await stage.request("GET", "/", host=f"8000-abcdefghij0123456789.localhost:{stage.cloche.server.port}"),
    ]
    assert {repr(without_id(answer)) for answer in answers} == {repr(without_id(answers[0]))}
    assert answers[0].status == 404
    assert app.seen == []


async def test_a_link_becomes_a_cookie_by_one_redirect_and_leaves_the_url(stage: Stage) -> None:
    app = saying(plain())
    await stage.use(app)
    token = await stage.token()
    answer = await stage.get(f"/a%2Fb?x=1&cloche_token={token}&y", "Accept: text/html,*/*")
    assert answer.status == 302
    assert answer.get("location") == f"http://{stage.host}/a%2Fb?x=1&y"
    assert answer.get("referrer-policy") == "no-referrer"
    assert answer.get("cache-control") == "no-store"
    name, _, attributes = (answer.get("set-cookie") or "").partition("=")
    assert name == "cloche_preview"
    assert re.fullmatch(r"clt_[\w-]{75}; Path=/; Max-Age=\d+; HttpOnly; SameSite=Lax", attributes)
    assert token not in attributes
    assert app.seen == []
    answer = await stage.get("/a%2Fb?x=1&y", f"Cookie: {name}={attributes.partition(';')[0]}; mine=1")
    assert (answer.status, answer.body) == (200, b"hello")
    assert app.seen[0].line == "GET /a%2Fb?x=1&y HTTP/1.1"
    assert app.seen[0].headers["cookie"] == "mine=1"


async def test_the_redirect_leads_nowhere_else(stage: Stage) -> None:
    answer = await stage.get(f"//evil.example/?cloche_token={await stage.token()}", "Accept: text/html")
    assert answer.get("location") == f"http://{stage.host}//evil.example/"


async def test_a_cookie_is_no_link_and_a_link_is_no_cookie_and_neither_is_a_key(stage: Stage) -> None:
    """security.md 4, item 5: cross acceptance rejected both ways."""
    await stage.use(saying(plain()))
    token, cookie = await stage.token(), (await stage.cookie()).partition("=")[2]
    assert (await stage.get(f"/?cloche_token={token}")).status == 200
    assert (await stage.get("/", f"Cookie: cloche_preview={cookie}")).status == 200
    assert (await stage.get(f"/?cloche_token={cookie}")).status == 404
    assert (await stage.get("/", f"Cookie: cloche_preview={token}")).status == 404
    assert (await stage.get("/", f"Authorization: Bearer {token}")).status == 404
    key = stage.cloche.settings.admin_key_path.read_text().strip()
    assert (await stage.get(f"/?cloche_token={key}")).status == 404
    api = await stage.request("GET", "/v1/info", f"Authorization: Bearer {token}", host="localhost")
    assert api.status == 401
    api = await stage.request("GET", "/v1/info", f"Cookie: cloche_preview={cookie}", host="localhost")
    assert api.status == 401


async def test_a_program_uses_a_link_without_a_redirect_and_the_token_stays_here(stage: Stage) -> None:
    app = saying(plain())
    await stage.use(app)
    token = await stage.token()
    assert (await stage.request("POST", f"/in?a=1&cloche_token={token}", body=b"data")).status == 200
    assert app.seen[0].line == "POST /in?a=1 HTTP/1.1"
    assert token not in str(app.seen)


async def test_a_key_gets_in_and_is_not_passed_on(stage: Stage) -> None:
    app = saying(plain())
    await stage.use(app)
    key = stage.cloche.settings.admin_key_path.read_text().strip()
    assert (await stage.get("/", f"Authorization: Bearer {key}")).status == 200
    assert key not in str(app.seen)
    assert "authorization" not in app.seen[0].headers


async def test_a_public_preview_says_so_and_lets_everybody_in_until_it_is_private(stage: Stage) -> None:
    app = saying(plain())
    await stage.use(app)
    made = (await stage.cloche.client.post(stage.path, json={"visibility": "public"})).json()
    assert "anybody" in made["warning"]
    assert (await stage.get("/")).status == 200
    assert (await stage.get("/", "Cookie: cloche_preview=x")).status == 200
    assert "cookie" not in app.seen[-1].headers
    unchanged = (await stage.cloche.client.post(stage.path, json={})).json()
    assert unchanged["visibility"] == "public"
    private = (await stage.cloche.client.post(stage.path, json={"visibility": "private"})).json()
    assert private["warning"] is None
    assert (await stage.get("/")).status == 404


async def test_revoking_ends_tokens_cookies_and_open_connections_at_once(stage: Stage) -> None:
    async def endless(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await asyncio.Event().wait()

    await stage.use(RecordingApp(endless))
    token, cookie = await stage.token(), await stage.cookie()
    async with stage.connection() as (reader, writer):
        writer.write(f"GET / HTTP/1.1\r\nHost: {stage.host}\r\nCookie: {cookie}\r\n\r\n".encode())
        await reader.readuntil(b"data: 1\n\n")
        assert (await stage.cloche.client.delete(f"{stage.path}/tokens")).status_code == 200
        rest = await asyncio.wait_for(reader.read(), 30)
        assert not rest.endswith(b"0\r\n\r\n")
    await stage.use(saying(plain()))
    assert (await stage.get(f"/?cloche_token={token}")).status == 404
    assert (await stage.get("/", f"Cookie: {cookie}")).status == 404
    assert (await stage.get(f"/?cloche_token={await stage.token()}")).status == 200


async def test_what_a_token_let_in_ends_with_it(stage: Stage) -> None:
    async def silent(_: Seen, __: asyncio.StreamReader, ___: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    await stage.use(RecordingApp(silent))
    token = await stage.token(1)
    async with stage.connection() as (reader, writer):
        writer.write(f"GET /?cloche_token={token} HTTP/1.1\r\nHost: {stage.host}\r\n\r\n".encode())
        assert await asyncio.wait_for(reader.read(), 30) == b""


async def test_a_deleted_preview_and_a_deleted_sandbox_are_nothing(stage: Stage) -> None:
    await stage.use(saying(plain()))
    token = await stage.token()
    assert (await stage.cloche.client.delete(stage.path)).status_code == 200
    assert (await stage.get(f"/?cloche_token={token}")).status == 404
    assert (await stage.cloche.client.get(stage.path)).status_code == 404
    await stage.cloche.client.post(stage.path, json={})
    assert (await stage.get(f"/?cloche_token={token}")).status == 404  # the new one has another secret
    token = await stage.token()
    await stage.cloche.client.delete(f"/v1/sandboxes/{stage.sandbox_id}")
    assert (await stage.get(f"/?cloche_token={token}")).status == 404
    assert (await stage.cloche.client.get(stage.path)).status_code == 410


async def test_previews_belong_to_owners(stage: Stage) -> None:
    async with stage.cloche.client_of("somebody") as client:
        for method, path in (("POST", ""), ("GET", ""), ("DELETE", ""), ("POST", "/token"), ("DELETE", "/tokens")):
            assert (await client.request(method, stage.path + path)).status_code == 404
    async with stage.cloche.client_of("admin", Role.VIEWER) as client:
        assert (await client.get(stage.path)).status_code == 200
        assert (await client.post(stage.path, json={})).status_code == 403


@pytest.mark.parametrize("port", ["0", "65536", "-1", "8080@evil", "08080", "80%2F80"])
async def test_what_is_no_port_has_no_preview(stage: Stage, port: str) -> None:
    """security.md 4, item 7."""
    response = await stage.cloche.client.post(f"/v1/sandboxes/{stage.sandbox_id}/previews/{port}", json={})
    assert response.status_code == 404


async def test_there_are_bounds(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_service, "MAX_PREVIEWS", 2)
    base = f"/v1/sandboxes/{stage.sandbox_id}/previews"
    assert (await stage.cloche.client.post(f"{base}/1", json={})).status_code == 200
    assert (await stage.cloche.client.post(f"{base}/2", json={})).status_code == 429
    assert [item["port"] for item in (await stage.cloche.client.get(base)).json()["items"]] == [1, 8000]


# Two worlds behind one port


async def test_a_preview_host_has_no_api_and_the_api_has_no_previews(stage: Stage) -> None:
    app = saying(plain("the app's"))
    await stage.use(app)
    key = stage.cloche.settings.admin_key_path.read_text().strip()
    for target in ("/v1/health", "/v1/info", "/openapi.json", "/docs"):
        assert (await stage.get(target, f"Authorization: Bearer {key}")).body == b"the app's"
    assert (await stage.get("/v1/health")).status == 404
    # One connection may carry both; each request is looked at by itself.
    async with stage.connection() as (reader, writer):
        for host, status in (("localhost", 200), (stage.host, 404), ("localhost", 200)):
            writer.write(f"GET /v1/health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (await read_answer(reader)).status == status


async def test_other_names_below_the_domain_are_nobodys(stage: Stage) -> None:
    """security.md 4, item 6."""
    own, id_ = stage.host.partition(":")[0], stage.sandbox_id
    for name in (
        "x.localhost",
        "8000-x.localhost",
        f"{own}.evil.example",
        f"evil.{own}",
        f"08000-{id_}.localhost",
        f"{own}.",
    ):
        assert (await stage.request("GET", "/v1/health", host=name)).status == 403, name


async def test_a_page_of_a_preview_is_a_stranger_to_the_api(stage: Stage) -> None:
    """security.md 4, items 3 and 12: Origin of a preview is not the API's, and nothing is echoed."""
    key = stage.cloche.settings.admin_key_path.read_text().strip()
    headers = (f"Origin: http://{stage.host}", f"Authorization: Bearer {key}")
    answer = await stage.request("POST", "/v1/sandboxes", *headers, body=b"{}", host="localhost")
    assert answer.status == 403
    assert answer.get("access-control-allow-origin") is None


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://8000-zzzzzzzzzz0123456789.localhost:{port}"]
)
async def test_with_a_cookie_pages_of_others_change_nothing_and_open_no_socket(stage: Stage, origin: str) -> None:
    """security.md 4, item 13, and sibling previews below one domain, which are same-site to a browser."""
    app = saying(plain())
    await stage.use(app)
    header = (f"Cookie: {await stage.cookie()}", "Origin: " + origin.format(port=stage.cloche.server.port))
    assert (await stage.request("POST", "/", *header, body=b"x")).status == 403
    assert (await stage.get("/", *header, *UPGRADE)).status == 403
    assert app.seen == []
    assert (await stage.get("/", *header)).status == 200
    own = (header[0], f"Origin: http://{stage.host}")
    assert (await stage.request("POST", "/", *own, body=b"x")).status == 200


# Smuggling


UNCLEAR = [
    ["Content-Length: 5", "Transfer-Encoding: chunked"],
    ["Content-Length: 5", "Content-Length: 6"],
    ["Content-Length: 5", "Content-Length: 5"],
    ["Content-Length: 5, 5"],
    ["Content-Length: +5"],
    ["Content-Length: 0x5"],
    ["Content-Length: ٥"],
    ["Transfer-Encoding: xchunked"],
    ["Transfer-Encoding: gzip, chunked"],
    ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
    ["Transfer-Encoding : chunked"],
    ["Transfer-Encoding: \x0bchunked"],
]


async def test_a_body_whose_end_is_not_clear_reaches_nobody(stage: Stage) -> None:
    app = saying(plain())
    await stage.use(app)
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    for lines in UNCLEAR:
        head = "\r\n".join(["POST / HTTP/1.1", f"Host: {stage.host}", *lines, "", ""]).encode()
        said = await stage.raw(head + b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 400 "), (lines, said)
        assert said.count(b"HTTP/1.1") == 1, (lines, said)
        assert not app.seen, lines
    clear = f"POST / HTTP/1.1\r\nHost: {stage.host}\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    assert (await stage.raw(clear.encode())).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("method", ["CONNECT", "TRACE"])
async def test_methods_that_are_not_for_apps(stage: Stage, method: str) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    assert (await stage.request(method, "/")).status == 405


@pytest.mark.parametrize("target", ["http://localhost/v1/keys", "http://{host}/", "x", "*"])
async def test_a_target_is_a_path(stage: Stage, target: str) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    assert (await stage.request("GET", target.format(host=stage.host))).status == 400


async def test_two_hosts_are_none(stage: Stage) -> None:
    said = await stage.raw(f"GET / HTTP/1.1\r\nHost: {stage.host}\r\nHost: localhost\r\n\r\n".encode())
    assert said.split(b" ")[1] in {b"400", b"403"}


BROKEN = {
    "no http": b"SSH-2.0-OpenSSH\r\n\r\n",
    "nothing": b"",
    "length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a header without end": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000,
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"X: aaaaaaaaaaaaaaaa\r\n" * 5_000 + b"\r\n",
    "a flood of 1xx": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 50 + plain(),
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
    "a header within a header": b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b\r\n\r\n",
}


async def test_an_app_that_breaks_http_is_a_502(stage: Stage) -> None:
    """security.md 4, item 10."""
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    for what, raw in BROKEN.items():
        await stage.use(saying_and_hanging_up(raw))
        answer = await stage.get("/")
        assert answer.status == 502, what
        assert json.loads(answer.body)["code"] == "guest_fault", what
        await stage.use(saying(plain()))
        assert (await stage.get("/")).body == b"hello", what


async def test_what_comes_behind_an_answer_is_nobodys(stage: Stage) -> None:
    """Two answers to one request: the second must not be the answer to the next visitor's."""
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    app = saying(plain("mine") + plain("stolen"))
    await stage.use(app)
    for _ in range(5):
        assert (await stage.get("/")).body == b"mine"
    assert app.tunnels == 5


async def test_a_cut_answer_is_not_taken_for_a_whole_one(stage: Stage) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    head = b"HTTP/1.1 200 OK\r\n"
    for raw in (b"Content-Length: 10\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"):
        await stage.use(saying_and_hanging_up(head + raw))
        with pytest.raises(asyncio.IncompleteReadError):
            await stage.get("/")


async def test_early_hints_are_passed_over_and_errors_of_the_app_are_its_own(stage: Stage) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    await stage.use(
        saying(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 418 I'm a teapot\r\nContent-Length: 3\r\nX-A: 1\r\n\r\ntea")
    )
    answer = await stage.get("/")
    assert (answer.status, answer.body, answer.get("x-a")) == (418, b"tea", "1")


async def test_nobody_follows_redirects_here(stage: Stage) -> None:
    """security.md 4, item 11."""
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    app = saying(b"HTTP/1.1 302 Found\r\nLocation: http://localhost:9/x\r\nContent-Length: 0\r\n\r\n")
    await stage.use(app)
    answer = await stage.get("/")
    assert answer.status == 302
    assert answer.get("location") == f"http://9-{stage.sandbox_id}.localhost:{stage.cloche.server.port}/x"
    assert len(app.seen) == 1


# HTTP


async def test_tunnels_are_used_again_for_requests_that_may_be_repeated(stage: Stage) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    app = saying(plain())
    await stage.use(app)
    for _ in range(5):
        assert (await stage.get("/")).status == 200
    assert app.tunnels == 1
    assert (await stage.request("POST", "/", body=b"x")).status == 200
    assert app.tunnels == 2


async def test_a_kept_tunnel_that_has_closed_is_replaced(stage: Stage) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    count = 0

    async def once(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise ConnectionError  # as a server that closes idle connections does, just as a request arrives
        writer.write(plain())

    await stage.use(RecordingApp(once))
    assert [(await stage.get("/")).status for _ in range(2)] == [200, 200]
    assert count == 3


async def test_head_has_no_body_and_http_1_0_ends_by_closing(stage: Stage) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    await stage.use(saying(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"))
    answer = await stage.request("HEAD", "/")
    assert (answer.status, answer.get("content-length")) == (200, "1234")
    await stage.use(saying(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"))
    said = await stage.raw(f"GET / HTTP/1.0\r\nHost: {stage.host}\r\nConnection: keep-alive\r\n\r\n".encode())
    assert said.endswith(b"\r\n\r\nhello")
    assert b"ransfer-" not in said


async def test_an_answer_may_come_before_the_body_has_ended(stage: Stage) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    await stage.use(
        saying_and_hanging_up(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
    )
    answer = await stage.request("POST", "/", "X-No-Read: 1", body=b"x" * 4_000_000)
    assert (answer.status, answer.body) == (413, b"big")


async def test_a_body_is_not_asked_for_when_nobody_wants_it(stage: Stage) -> None:
    async with stage.connection() as (reader, writer):
        head = f"POST / HTTP/1.1\r\nHost: {stage.host}\r\nContent-Length: 9999999999\r\nExpect: 100-continue\r\n\r\n"
        writer.write(head.encode())
        assert (await read_answer(reader)).status == 404


async def test_a_body_is_asked_for_when_the_app_is_there(stage: Stage) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    app = saying(plain())
    await stage.use(app)
    async with stage.connection() as (reader, writer):
        head = f"POST / HTTP/1.1\r\nHost: {stage.host}\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        writer.write(head.encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"data")
        assert (await read_answer(reader)).status == 200
    assert app.seen[0].body == b"data"
    assert "expect" not in app.seen[0].headers


async def test_a_visitor_that_does_not_read_slows_the_app_down(stage: Stage) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    sent = 0

    async def flood(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            sent += 65_536

    await stage.use(RecordingApp(flood))
    async with stage.connection() as (reader, writer):
        writer.transport.pause_reading()
        writer.write(f"GET / HTTP/1.1\r\nHost: {stage.host}\r\n\r\n".encode())
        before = -1
        while sent != before or not sent:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < 32 * 1024 * 1024
        del reader


async def test_an_app_learns_that_its_visitor_went_away(stage: Stage) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})

    async def silent(_: Seen, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)

    app = RecordingApp(silent)
    await stage.use(app)
    async with stage.connection() as (_, writer):
        writer.write(f"GET / HTTP/1.1\r\nHost: {stage.host}\r\n\r\n".encode())
        while not app.seen:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(30):
        while not app.ended:
            await asyncio.sleep(0.01)


async def test_silence_has_an_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_exchange, "IDLE_S", 0.3)
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})

    async def silent(_: Seen, __: asyncio.StreamReader, ___: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    await stage.use(RecordingApp(silent))
    assert await stage.raw(f"GET / HTTP/1.1\r\nHost: {stage.host}\r\n\r\n".encode()) == b""
    upload = f"POST / HTTP/1.1\r\nHost: {stage.host}\r\nContent-Length: 5\r\n\r\nhel"
    assert await stage.raw(upload.encode()) == b""


async def test_connections_of_one_preview_are_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_service, "MAX_CONNECTIONS", 1)
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    entered = asyncio.Event()

    async def silent(_: Seen, reader: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
        entered.set()
        await reader.readexactly(1)

    await stage.use(RecordingApp(silent))
    async with stage.connection() as (_, writer):
        writer.write(f"GET / HTTP/1.1\r\nHost: {stage.host}\r\n\r\n".encode())
        await entered.wait()
        assert (await stage.get("/")).status == 429
    await stage.use(saying(plain()))
    async with asyncio.timeout(30):
        while (await stage.get("/")).status != 200:
            await asyncio.sleep(0.02)


async def test_the_log_names_previews_but_no_urls(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await stage.use(saying(plain()))
    token = await stage.token()
    await stage.get(f"/secret-path?cloche_token={token}")
    lines = [record.__dict__ for record in caplog.records if record.name == "cloche.access"]
    assert any(line["route"] == "preview" and line["status"] == 200 for line in lines)
    assert token not in str(lines)
    assert "secret-path" not in str(lines)


# WebSocket


async def socket_app(_: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(ACCEPTED + b"first frame")
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()


async def test_a_websocket_is_bytes_in_both_directions(stage: Stage) -> None:
    """cloudflare/sandbox-sdk#240, and daytonaio/daytona#4117: a private WebSocket needs a way in without a login page."""
    app = RecordingApp(socket_app)
    await stage.use(app)
    async with stage.connection() as (reader, writer):
        lines = [f"GET /ws?a=%20&cloche_token={await stage.token()} HTTP/1.1", f"Host: {stage.host}", *UPGRADE]
        origin = f"Origin: http://{stage.host}"
        writer.write("\r\n".join([*lines, origin, "Sec-WebSocket-Protocol: vite-hmr", "", ""]).encode())
        answer = await read_answer(reader)
        assert answer.status == 101
        assert answer.get("upgrade") == "websocket"
        assert await reader.readexactly(11) == b"first frame"
        data = bytes(range(256)) * 4096
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
    assert app.seen[0].line == "GET /ws?a=%20 HTTP/1.1"
    assert app.seen[0].headers["host"] == "localhost:8000"
    assert app.seen[0].headers["origin"] == "http://localhost:8000"
    async with asyncio.timeout(30):
        while not app.ended:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (plain(), 200),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", 403),
        (ACCEPTED.replace(b"s3pP", b"xxxx"), 502),
        (ACCEPTED.replace(b"Upgrade: websocket", b"Upgrade: x"), 502),
        (b"garbage\r\n\r\n", 502),
    ],
)
async def test_a_handshake_that_fails_is_an_answer(stage: Stage, raw: bytes, status: int) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    await stage.use(saying_and_hanging_up(raw))
    assert (await stage.get("/", *UPGRADE)).status == status


async def test_other_upgrades_and_upgrades_with_bodies_are_not_passed_on(stage: Stage) -> None:
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    app = saying(plain())
    await stage.use(app)
    assert (
        await stage.get("/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: x")
    ).status == 200
    assert "upgrade" not in app.seen[0].headers
    assert (await stage.request("POST", "/", *UPGRADE)).status == 400
    assert (await stage.request("GET", "/", *UPGRADE, body=b"x")).status == 400
    assert len(app.seen) == 1


async def test_revoking_closes_websockets(stage: Stage) -> None:
    await stage.use(RecordingApp(socket_app))
    async with stage.connection() as (reader, writer):
        head = ["GET / HTTP/1.1", f"Host: {stage.host}", f"Cookie: {await stage.cookie()}", *UPGRADE, "", ""]
        writer.write("\r\n".join(head).encode())
        assert (await read_answer(reader)).status == 101
        await stage.cloche.client.delete(f"{stage.path}/tokens")
        await asyncio.wait_for(reader.read(), 30)


# While nothing listens


async def closed(method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
    del method, headers, body
    assert target == "/v1/ports/8000/connect"
    error = {
        "code": "port_closed",
        "message": "nothing listens on port 8000",
        "details": {"port": 8000, "reason": "refused"},
    }
    raw = json.dumps(error).encode()
    writer.write(f"HTTP/1.1 503 X\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)


async def test_a_browser_waits_and_a_program_is_told(stage: Stage) -> None:
    stage.cloche.driver.guests[stage.sandbox_id].raw = closed
    await stage.cloche.client.post(stage.path, json={"visibility": "public"})
    page = await stage.get("/", "Accept: text/html,application/xhtml+xml")
    assert (page.status, page.get("retry-after")) == (503, "1")
    assert b"Waiting for port 8000" in page.body
    assert "default-src 'none'" in (page.get("content-security-policy") or "")
    program = await stage.get("/", "Accept: application/json")
    assert (program.status, program.get("retry-after")) == (503, "1")
    assert json.loads(program.body)["code"] == "port_closed"
    assert (await stage.request("POST", "/", body=b"x")).status == 503
    assert (await stage.get("/", *UPGRADE)).status == 503
    stage.cloche.driver.guests[stage.sandbox_id].app = saying(plain())()
    assert (await stage.get("/")).status == 200
