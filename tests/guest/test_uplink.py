"""The uplink against a small server of the test's own."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from guest_process import guest_environ
from tornado.iostream import IOStream
from tornado.web import Application
from uplink_hub import Hub, call

from cloche_guest.server import make_server


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    made = Hub(tmp_path / "uplink.sock")
    yield made
    await made.close()


@pytest.fixture
async def guest(tmp_path: Path, hub: Hub) -> AsyncIterator[asyncio.subprocess.Process]:
    environ = guest_environ(tmp_path, tmp_path) | {
        "CLOCHE_GUEST_UPLINK": str(hub.path),
        "CLOCHE_SANDBOX_ID": "a" * 20,
        "CLOCHE_EPOCH": "e1",
        "CLOCHE_UPLINK_TOKEN": "the token",
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "cloche_guest", env=environ)
    yield process
    if process.returncode is None:
        process.terminate()
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_the_guest_dials_says_hello_and_serves(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    await hub.open()
    connection = await hub.take()
    hello = hub.hellos[0]
    assert (hello["protocol"], hello["sandbox_id"], hello["epoch"]) == (2, "a" * 20, "e1")
    assert hello["token"] == "the token"
    assert (await call(connection, "GET", "/v1/health"))["guest_epoch"] == hello["guest_epoch"]


async def test_the_identity_is_applied_before_the_first_request(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    await hub.open()
    code = "import os; (os.environ['GIVEN'], os.environ['CLOCHE_SANDBOX_ID'])"
    run = await call(await hub.take(), "POST", "/v1/contexts/default/runs", {"code": code})
    assert run["outputs"][0]["data"]["text/plain"] == repr(("by the server", "a" * 20))


async def test_four_connections_wait_and_a_taken_one_is_replaced(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    await hub.open()
    waiting = [await hub.take() for _ in range(4)]
    streams = []
    for connection in waiting:
        connection[1].write(b"GET /v1/contexts/default/events HTTP/1.1\r\nHost: guest\r\n\r\n")
        streams.append(connection)
    fresh = [await hub.take() for _ in range(4)]
    assert (await call(fresh[0], "GET", "/v1/health"))["status"] == "ok"
    for connection in streams:
        assert await connection[0].readuntil(b"\r\n\r\n")


async def test_a_connection_is_used_for_many_requests(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    await hub.open()
    connection = await hub.take()
    for _ in range(20):
        assert (await call(connection, "GET", "/v1/health"))["status"] == "ok"
    assert len(hub.hellos) <= 10  # four idle ones, and little more: nothing is dialled in a circle


async def test_a_server_that_was_killed_finds_everything_again(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    """kill -9 of the server loses nothing: kernels go on, the guest dials again when the socket is back."""
    await hub.open()
    body = {"code": "print('before')\ninput()\nprint('after')", "allow_stdin": True}
    run = await call(await hub.take(), "POST", "/v1/contexts/default/runs?wait_s=0", body)
    await hub.close()
    await hub.open()
    path = f"/v1/contexts/default/runs/{run['id']}"
    connection = await hub.take()
    async with asyncio.timeout(60):
        while (await call(connection, "GET", path))["input_request"] is None:
            pass
    await call(connection, "POST", path + "/input", {"text": ""})
    done = await call(connection, "GET", path + "?wait_s=60")
    assert done["outputs"] == [{"type": "stdout", "text": "before\nafter\n"}]


async def test_a_refused_hello_is_tried_again(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    hub.refuse = "not now"
    await hub.open()
    await asyncio.wait_for(hub.refused.wait(), 60)
    hub.refuse = None
    assert (await call(await hub.take(), "GET", "/v1/health"))["status"] == "ok"


async def test_nothing_the_guest_starts_sees_the_token(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    await hub.open()
    code = "import os, subprocess; ('TOKEN' in str(os.environ), 'the token' in subprocess.getoutput('env'))"
    run = await call(await hub.take(), "POST", "/v1/contexts/default/runs", {"code": code})
    assert run["outputs"][0]["data"]["text/plain"] == "(False, False)"


def test_bad_settings_end_the_guest_with_words(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cloche_guest", "--listen", "0.0.0.0:1"]
    ended = subprocess.run(command, env=guest_environ(tmp_path, tmp_path), capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "127.0.0.1:PORT" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_the_connection_that_brought_the_order_to_close_ends_last(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    """So its end says that none is left. One that the server had let go of was still open when the sandbox was saved."""
    await hub.open()
    waiting = [await hub.take() for _ in range(4)]
    await hub.stop_listening()
    ordering = waiting.pop(2)
    body = b'{"reason": "fork"}'
    head = f"POST /v1/uplinks/close HTTP/1.1\r\nHost: guest\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    ordering[1].write(head + body)
    answer = await asyncio.wait_for(ordering[0].read(), 30)
    assert b" 204 " in answer.split(b"\r\n")[0]
    assert [_has_ended(writer) for _, writer in waiting] == [True, True, True]


async def test_one_that_was_closed_as_it_was_taken_on_harms_nothing() -> None:
    """The guest ended: an order to close all may be carried out between the answer to a hello and its being read."""
    ours, theirs = socket.socketpair()
    stream = IOStream(ours)
    stream.close()
    theirs.close()
    server = make_server(Application([]))
    server.handle_stream(stream, "uplink")
    await server.close_all_connections()


def _has_ended(writer: asyncio.StreamWriter) -> bool:
    """As the kernel knows it, whatever the loop has read."""
    with socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno())) as look:
        try:
            return look.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
