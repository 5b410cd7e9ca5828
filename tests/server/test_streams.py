"""Event streams through the server: SSE and WebSocket, their ends, and who waits for whom."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import websockets
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application
from tornado.websocket import WebSocketClosedError, WebSocketHandler
from websockets.frames import Frame, Opcode
from websockets.protocol import Event
from websockets.utils import accept_key

from cloche.errors import ErrorBody
from cloche.models import Role
from cloche_server.http._app import PING_S

from .conftest import PATIENCE_S, Harness, harness
from .fake_guest import http_answer

RUN = "contexts/default/runs/run-aaaaaaaaaaaa/events"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(n: int) -> bytes:
    return f'id: e.{n}\nevent: stdout\ndata: {{"text": "{n}"}}\n\n'.encode()


async def answer_with(cloche: Harness, write: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> str:
    sandbox_id = await cloche.sandbox()

    async def raw(_m: str, _t: str, _h: dict[str, str], _b: bytes, writer: asyncio.StreamWriter) -> None:
        await write(writer)

    cloche.driver.guests[sandbox_id].raw = raw
    return f"/v1/sandboxes/{sandbox_id}/"


async def test_events_pass_as_they_come_byte_for_byte(cloche: Harness) -> None:
    go_on = asyncio.Event()

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(event(1)) + chunk(b": heartbeat\n\n"))
        await go_on.wait()
        writer.write(chunk(event(2)[:7]) + chunk(event(2)[7:]) + b"0\r\n\r\n")

    base = await answer_with(cloche, write)
    async with cloche.client.stream("GET", base + RUN + "?cursor=e.0", headers={"Last-Event-ID": "e.9"}) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        got = b""
        async for part in response.aiter_raw():
            got += part
            if got.endswith(b"heartbeat\n\n"):
                go_on.set()
    assert got == event(1) + b": heartbeat\n\n" + event(2)
    _, target, headers, _ = next(iter(cloche.driver.guests.values())).requests[-1]
    assert target == f"/v1/{RUN}?cursor=e.0"
    assert (headers["last-event-id"], headers["accept"]) == ("e.9", "text/event-stream")


async def test_a_post_can_stream_and_tells_the_run(cloche: Harness) -> None:
    async def write(writer: asyncio.StreamWriter) -> None:
        head = HEAD.replace(b"\r\n\r\n", b"\r\nCloche-Run-Id: run-aaaaaaaaaaaa\r\n\r\n")
        writer.write(head + chunk(event(1)) + b"0\r\n\r\n")

    base = await answer_with(cloche, write)
    headers = {"Accept": "text/event-stream"}
    response = await cloche.client.post(base + "contexts/default/runs", json={"code": "1"}, headers=headers)
    assert response.headers["Cloche-Run-Id"] == "run-aaaaaaaaaaaa"
    assert response.content == event(1)


@pytest.mark.parametrize("value", ["run-x", "run-aaaaaaaaaaaa\tx", "a" * 5000])
async def test_a_forged_run_id_does_not_pass(cloche: Harness, value: str) -> None:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD.replace(b"\r\n\r\n", f"\r\nCloche-Run-Id: {value}\r\n\r\n".encode()) + b"0\r\n\r\n")

    base = await answer_with(cloche, write)
    response = await cloche.client.get(base + RUN)
    assert "Cloche-Run-Id" not in response.headers


async def test_a_stream_that_is_no_stream_is_a_fault(cloche: Harness) -> None:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(http_answer(200, {"a": 1}))

    response = await cloche.client.get(await answer_with(cloche, write) + RUN)
    assert ErrorBody.model_validate_json(response.content).code == "guest_fault"


async def test_an_error_before_the_stream_is_an_ordinary_error(cloche: Harness) -> None:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(http_answer(409, {"code": "foreign_cursor", "message": "of another epoch"}))

    response = await cloche.client.get(await answer_with(cloche, write) + RUN)
    assert response.status_code == 409
    assert ErrorBody.model_validate_json(response.content).code == "foreign_cursor"


async def test_a_guest_that_dies_between_events_is_told_as_the_last_event(cloche: Harness) -> None:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(event(1)))
        await writer.drain()
        writer.close()

    response = await cloche.client.get(await answer_with(cloche, write) + RUN)
    first, failure = response.content.split(b"\n\n")[:2]
    assert first + b"\n\n" == event(1)
    name, data = failure.split(b"\n")
    assert name == b"event: failure"
    assert ErrorBody.model_validate_json(data.removeprefix(b"data: ")).code == "sandbox_unreachable"


async def test_a_guest_that_dies_within_an_event_cuts_the_stream(cloche: Harness) -> None:
    """A failure event behind half an event would make the client believe the half."""

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(event(1)[:-1]))
        await writer.drain()
        writer.close()

    with pytest.raises(httpx.RemoteProtocolError):
        await cloche.client.get(await answer_with(cloche, write) + RUN)


async def test_a_reader_that_stops_reading_makes_the_guest_wait(cloche: Harness) -> None:
    sent = 0

    async def write(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(HEAD)
        data = chunk(b"data: " + b"x" * 65_000 + b"\n\n")
        while True:
            writer.write(data)
            await writer.drain()
            sent += len(data)

    base = await answer_with(cloche, write)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with cloche.client.stream("GET", base + RUN) as response:
        parts = response.aiter_raw()
        await anext(parts)
        last = -1
        async with asyncio.timeout(60):
            while sent != last:
                last = sent
                await asyncio.sleep(0.2)
        stalled = sent
        async for _ in parts:
            if sent > stalled + 20_000_000:
                break
    assert stalled < 32_000_000  # the kernel's own buffers, and ours of 256 KiB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000


async def test_a_client_that_goes_away_ends_the_guests_side_only(cloche: Harness) -> None:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(event(1)))
        await asyncio.sleep(30)

    base = await answer_with(cloche, write)
    async with cloche.client.stream("GET", base + RUN) as response:
        await anext(response.aiter_raw())
    guest = next(iter(cloche.driver.guests.values()))
    async with asyncio.timeout(30):
        while not guest.disconnects:
            await asyncio.sleep(0.01)
        while len(cloche.server.services.open_calls):  # the call ends behind its connection to the guest
            await asyncio.sleep(0.01)


async def test_small_events_are_not_held_back(cloche: Harness) -> None:
    """Each event answers the one before: with Nagle's algorithm on, each would take 40 ms."""
    turn = asyncio.Event()

    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for n in range(50):
            writer.write(chunk(event(n)))
            await turn.wait()
            turn.clear()
        writer.write(b"0\r\n\r\n")

    base = await answer_with(cloche, write)
    async with cloche.client.stream("GET", base + RUN) as response:
        assert set(cloche.nodelay()) == {True}
        got = b""
        async for part in response.aiter_raw():
            got += part
            turn.set()
    assert got == b"".join(map(event, range(50)))


async def test_a_shutdown_ends_streams_with_a_reason(short_dir: Path) -> None:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk(event(1)))
        await asyncio.sleep(30)

    async with harness(short_dir) as cloche:
        base = await answer_with(cloche, write)
        client = cloche.client_of("admin")
        stream = client.stream("GET", base + RUN)
        response = await stream.__aenter__()
        parts = response.aiter_raw()
        got = await anext(parts)
        driver = cloche.driver
    got += b"".join([part async for part in parts])
    assert got.startswith(event(1) + b"event: failure\ndata: ")
    body = ErrorBody.model_validate_json(got.split(b"data: ")[-1].strip())
    assert (body.code, body.retryable) == ("connection_failed", True)
    assert driver.destroyed == []
    await stream.__aexit__(None, None, None)
    await client.aclose()
    for guest in list(driver.guests.values()):
        await guest.close()


@pytest.mark.parametrize("ends", [True, False], ids=["short", "long"])
async def test_a_shutdown_lets_short_calls_finish_and_ends_long_ones(short_dir: Path, ends: bool) -> None:
    begun = asyncio.Event()

    async def write(writer: asyncio.StreamWriter) -> None:
        begun.set()
        while not (ends and open_calls.closing):
            await asyncio.sleep(0.01)
        writer.write(http_answer(200, {"short": True}))

    async with harness(short_dir, shutdown_grace_s=60 if ends else 0.2) as cloche:
        open_calls = cloche.server.services.open_calls
        base = await answer_with(cloche, write)
        client = cloche.client_of("admin")
        call = asyncio.create_task(client.get(base + "contexts"))
        await asyncio.wait_for(begun.wait(), 60)
        driver = cloche.driver
    answer = await call
    if ends:
        assert answer.json() == {"short": True}
    else:
        assert ErrorBody.model_validate_json(answer.content).code == "connection_failed"
    await client.aclose()
    for guest in list(driver.guests.values()):
        await guest.close()


# WebSocket: the guest's side is a real Tornado handler over the dialled connection


class Socket(WebSocketHandler):
    """What the guest does with a WebSocket; a test replaces ``script``."""

    script: Callable[[Socket], Awaitable[None]]
    received: list[str | bytes]
    closed: asyncio.Event

    async def open(self, *_: str, **__: str) -> None:  # type: ignore[override]
        asyncio.ensure_future(type(self).script(self))  # noqa: RUF006

    def on_message(self, message: str | bytes) -> None:
        self.received.append(message)
        if message == "bad":
            self.close(1008, '{"code":"invalid_request"}')

    def on_close(self) -> None:
        self.closed.set()


@asynccontextmanager
async def socket_guest(cloche: Harness, script: Callable[[Socket], Awaitable[None]]) -> AsyncIterator[tuple[str, Any]]:
    """A sandbox whose guest serves WebSockets; yields the URL and the handler class."""
    sandbox_id = await cloche.sandbox()
    spec = cloche.driver.specs[sandbox_id]
    fake = cloche.driver.guests[sandbox_id]
    await fake.close()
    async with asyncio.timeout(30):
        while len(cloche.server.services.sandboxes.registry.live[sandbox_id].uplink.pool):
            await asyncio.sleep(0.005)

    class Handler(Socket):
        received: ClassVar[list[str | bytes]] = []
        closed = asyncio.Event()

    Handler.script = script  # type: ignore[assignment]
    server = HTTPServer(Application([(r"/v1/.*/events", Handler)]))
    stream = IOStream(socket.socket(socket.AF_UNIX))
    await stream.connect(str(spec.uplink_directory / "uplink.sock"))
    await stream.write(json.dumps(fake.hello).encode() + b"\n")
    await stream.read_until(b"\n")
    server.handle_stream(stream, "uplink")
    url = f"{cloche.base.replace('http', 'ws')}/v1/sandboxes/{sandbox_id}/{RUN}"
    yield url, Handler
    stream.close()


def dial(
    cloche: Harness, url: str, connection: type[websockets.ClientConnection] | None = None, **headers: str
) -> websockets.connect:
    authorization = str(cloche.client.headers["Authorization"])
    return websockets.connect(
        url,
        additional_headers={"Authorization": authorization} | headers,
        proxy=None,
        max_size=None,
        create_connection=connection,
        open_timeout=PATIENCE_S,
    )


async def test_a_silent_socket_is_pinged(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kortix-ai/suna#7062: proxies cut a WebSocket that was silent for 60 s."""
    assert PING_S <= 30
    monkeypatch.setattr("cloche_server.http._app.PING_S", 0.5)
    pinged = asyncio.Event()

    class Client(websockets.ClientConnection):
        def process_event(self, event: Event) -> None:
            if isinstance(event, Frame) and event.opcode is Opcode.PING:
                pinged.set()
            super().process_event(event)

    async with (
        harness(short_dir) as cloche,
        socket_guest(cloche, forever) as (url, _),
        dial(cloche, url, Client),
        asyncio.timeout(30),
    ):
        await pinged.wait()


async def test_messages_pass_both_ways_and_the_close_code_too(cloche: Harness) -> None:
    async def script(guest: Socket) -> None:
        await guest.write_message('{"type": "started"}')
        while len(guest.received) < 2:
            await asyncio.sleep(0.005)
        await guest.write_message("x" * 5_000_000)
        guest.close(1000, "finished")

    async with socket_guest(cloche, script) as (url, handler), dial(cloche, url) as client:
        assert await client.recv() == '{"type": "started"}'
        await client.send('{"type": "interrupt"}')
        await client.send('{"type": "input", "text": "é"}')
        assert len(await client.recv()) == 5_000_000
        with pytest.raises(websockets.ConnectionClosedOK) as closed:
            await client.recv()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1000, "finished")
        assert handler.received == ['{"type": "interrupt"}', '{"type": "input", "text": "é"}']


async def test_what_a_client_says_after_the_guest_has_closed_harms_nothing(cloche: Harness) -> None:
    """A viewer acknowledged output of a terminal that had ended: the server cut it off, and what was under way was lost."""

    async def script(guest: Socket) -> None:
        await guest.write_message("first")
        while not guest.received:
            await asyncio.sleep(0.005)
        await guest.write_message("x" * 100_000)
        guest.close(1000, "finished")

    async with socket_guest(cloche, script) as (url, handler), dial(cloche, url) as client:
        assert await client.recv() == "first"
        client.transport.pause_reading()
        await client.send("go")
        await asyncio.wait_for(handler.closed.wait(), 30)
        await client.send("late")
        client.transport.resume_reading()
        assert len(await client.recv()) == 100_000
        assert await close_of(client) == (1000, "finished")
        assert handler.received == ["go"]


async def forever(_: Socket) -> None:
    await asyncio.sleep(0)


async def close_of(client: websockets.ClientConnection) -> tuple[int, str]:
    with pytest.raises(websockets.ConnectionClosed) as closed:
        await client.recv()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


async def test_a_bad_message_is_closed_by_the_guest_with_its_reason(cloche: Harness) -> None:
    async with socket_guest(cloche, forever) as (url, _), dial(cloche, url) as client:
        await client.send("bad")
        assert await close_of(client) == (1008, '{"code":"invalid_request"}')


async def test_a_viewer_may_listen_but_not_speak(cloche: Harness) -> None:
    async with socket_guest(cloche, forever) as (url, handler):
        key = f"Bearer {cloche.key('admin', Role.VIEWER)}"
        async with websockets.connect(url, additional_headers={"Authorization": key}, proxy=None) as client:
            await client.send('{"type": "interrupt"}')
            assert await close_of(client) == (1008, '{"code":"forbidden"}')
            assert handler.received == []


async def test_binary_messages_are_refused(cloche: Harness) -> None:
    async with socket_guest(cloche, forever) as (url, _), dial(cloche, url) as client:
        await client.send(b"\x00")
        assert (await close_of(client))[0] == 1008


async def test_a_client_that_closes_closes_the_guests_side(cloche: Harness) -> None:
    async with socket_guest(cloche, forever) as (url, handler):
        async with dial(cloche, url):
            pass
        async with asyncio.timeout(30):
            await handler.closed.wait()


async def test_a_client_that_leaves_before_the_guest_has_answered_leaves_nothing(
    cloche: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """Its call was counted as open for ever, and a shutdown waited for it in vain."""
    caplog.set_level(logging.INFO)
    sandbox_id = await cloche.sandbox()
    guest = cloche.driver.guests[sandbox_id]
    asked, left = asyncio.Event(), asyncio.Event()

    async def accept(_m: str, _t: str, headers: dict[str, str], _b: bytes, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await left.wait()
        head = "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
        writer.write(f"{head}{accept_key(headers['sec-websocket-key'])}\r\n\r\n".encode())
        await asyncio.Event().wait()

    def is_noticed() -> bool:
        return any(record.__dict__.get("status") == 101 for record in caplog.records)

    guest.raw = accept
    dialling = asyncio.ensure_future(
        dial(cloche, f"{cloche.base.replace('http', 'ws')}/v1/sandboxes/{sandbox_id}/{RUN}").__aenter__()
    )
    async with asyncio.timeout(60):
        await asked.wait()
        dialling.cancel()
        while not is_noticed():
            await asyncio.sleep(0.01)
        left.set()
        while not guest.disconnects:
            await asyncio.sleep(0.01)
    assert len(cloche.server.services.open_calls) == 0


async def test_a_guest_that_dies_is_told_in_the_close(cloche: Harness) -> None:
    async def die(guest: Socket) -> None:
        await guest.write_message("{}")
        guest.ws_connection._abort()  # type: ignore[union-attr]

    async with socket_guest(cloche, die) as (url, _), dial(cloche, url) as client:
        assert await client.recv() == "{}"
        code, reason = await close_of(client)
        assert code == 1011
        assert json.loads(reason)["code"] == "sandbox_unreachable"


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "http://localhost:1"])
async def test_a_foreign_page_gets_no_socket(cloche: Harness, origin: str) -> None:
    async with socket_guest(cloche, forever) as (url, _):
        with pytest.raises(websockets.InvalidStatus) as refused:
            await dial(cloche, url, Origin=origin)
        assert refused.value.response.status_code == 403
        assert ErrorBody.model_validate_json(refused.value.response.body or b"").code == "forbidden"
        async with dial(cloche, url, Origin=cloche.base):
            pass


async def test_errors_before_the_upgrade_are_http_errors(cloche: Harness) -> None:
    async with socket_guest(cloche, forever) as (url, _):
        for changed, status in (
            (url + "?nope=1", 400),
            (url.replace("run-a", "run-A"), 404),
            (url.replace("/v1/sandboxes/", "/v1/sandboxes/x"), 404),
        ):
            with pytest.raises(websockets.InvalidStatus) as refused:
                await dial(cloche, changed)
            assert refused.value.response.status_code == status
        with pytest.raises(websockets.InvalidStatus) as stranger:
            await websockets.connect(url, proxy=None)
        assert stranger.value.response.status_code == 401


async def test_an_error_of_the_guest_before_the_upgrade_is_an_http_error(cloche: Harness) -> None:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(http_answer(404, {"code": "not_found", "message": "no such run"}))

    base = await answer_with(cloche, write)
    with pytest.raises(websockets.InvalidStatus) as refused:
        await dial(cloche, cloche.base.replace("http", "ws") + base + RUN)
    assert refused.value.response.status_code == 404


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: forged\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
async def test_a_wrong_handshake_is_a_fault(cloche: Harness, answer: bytes) -> None:
    async def write(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await asyncio.sleep(1)

    base = await answer_with(cloche, write)
    with pytest.raises(websockets.InvalidStatus) as refused:
        await dial(cloche, cloche.base.replace("http", "ws") + base + RUN)
    assert refused.value.response.status_code == 502


async def test_a_socket_client_that_stops_reading_makes_the_guest_wait(cloche: Harness) -> None:
    sent = 0

    async def flood(guest: Socket) -> None:
        nonlocal sent
        with suppress(WebSocketClosedError):
            while True:
                await guest.write_message("x" * 100_000)
                sent += 100_000

    async with socket_guest(cloche, flood) as (url, _), dial(cloche, url) as client:
        await client.recv()
        last = -1
        async with asyncio.timeout(60):
            while sent != last:
                last = sent
                await asyncio.sleep(0.2)
        assert sent < 32_000_000
        for _ in range(400):
            await client.recv()
        assert sent > last
        client.transport.abort()


async def test_a_guest_that_stops_reading_makes_the_socket_client_wait(cloche: Harness) -> None:
    go_on = asyncio.Event()
    sent = 0

    async def nothing(_: Socket) -> None:
        return

    async def read_later(guest: Socket, message: str) -> None:
        await go_on.wait()
        guest.received.append(message)

    async def flood(client: websockets.ClientConnection) -> None:
        nonlocal sent
        for _ in range(400):
            await client.send("x" * 100_000)
            sent += 1

    async with socket_guest(cloche, nothing) as (url, handler), dial(cloche, url) as client, asyncio.timeout(60):
        handler.on_message = read_later
        flooding = asyncio.create_task(flood(client))
        last = -1
        while sent != last:
            last = sent
            await asyncio.sleep(0.2)
        assert sent < 320
        go_on.set()
        await flooding
        while len(handler.received) < 400:
            await asyncio.sleep(0.005)


async def test_a_shutdown_closes_sockets_with_a_reason(short_dir: Path) -> None:
    async with harness(short_dir) as cloche, socket_guest(cloche, forever) as (url, _):
        client = await dial(cloche, url)
        await cloche.server.services.open_calls.close(0.5)
        code, reason = await close_of(client)
    assert code == 1012
    assert json.loads(reason)["code"] == "connection_failed"
