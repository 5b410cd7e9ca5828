"""Who gets into a preview, and what a page of one can do elsewhere."""

from __future__ import annotations

import asyncio
import re

import pytest

from cloche.models import Role
from cloche_server.preview import _service

from .visitor import UPGRADE, Answer, RecordingApp, Seen, Stage, plain, read_answer, saying


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
    now_us = _service.now_us()
    stage.cloche.server.services.previews._clock = lambda: now_us  # the token is good however late the request comes
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
