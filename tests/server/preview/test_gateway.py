"""What gets through the gateway, between a real server and apps of the tests' own making."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from cloche_server.preview import _exchange, _service

from .visitor import RecordingApp, Seen, Stage, plain, read_answer, saying, saying_and_hanging_up

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

    def lines() -> list[dict[str, object]]:
        return [record.__dict__ for record in caplog.records if record.name == "cloche.access"]

    async with asyncio.timeout(60):  # the line is written behind the answer
        while not any(line["route"] == "preview" and line["status"] == 200 for line in lines()):
            await asyncio.sleep(0.01)
    assert token not in str(lines())
    assert "secret-path" not in str(lines())
