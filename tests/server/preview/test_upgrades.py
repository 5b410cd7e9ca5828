"""WebSockets through a preview, and what is said while nothing listens."""

from __future__ import annotations

import asyncio
import json

import pytest

from .visitor import ACCEPTED, UPGRADE, RecordingApp, Seen, Stage, plain, read_answer, saying, saying_and_hanging_up


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
