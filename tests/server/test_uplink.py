"""Uplinks: real Unix sockets, good and bad guests."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloche.errors import InvalidRequest, SandboxStartFailed, SandboxUnreachable
from cloche.models.guest import PROTOCOL_VERSION
from cloche_server.auth import hash_secret
from cloche_server.uplink import Expected, Uplink, UplinkHub, Wire, WireClosed, _hub, _pool

ID = "a" * 20
SESSION = "s" * 32
EXPECTED = Expected(ID, "e1", hash_secret("boot"), {"A": "1"}, sudo=True)


class Host:
    """One hub with one uplink."""

    def __init__(self, root: Path) -> None:
        self.remembered: list[tuple[str, str]] = []
        self.hub = UplinkHub(root / "uplinks", lambda *pair: self.remembered.append(pair))
        self.hub.prepare()
        self.uplink: Uplink

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(self.uplink.directory / "uplink.sock"))

    async def greet(self, **changes: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, dict[str, object]]:
        reader, writer = await self.dial()
        hello = {
            "protocol": PROTOCOL_VERSION,
            "sandbox_id": ID,
            "epoch": "e1",
            "guest_epoch": "g",
            "token": "boot",
            "session": SESSION,
        }
        writer.write(json.dumps(hello | changes).encode() + b"\n")
        return reader, writer, json.loads(await reader.readline())


@pytest.fixture
async def host(short_dir: Path) -> AsyncIterator[Host]:
    made = Host(short_dir)
    made.uplink = await made.hub.listen(EXPECTED)
    yield made
    made.hub.close()


async def until(condition: object) -> None:
    """Waits for what another task is about to do."""
    async with asyncio.timeout(30):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.001)


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other side closes or resets the connection."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_only_root_reaches_the_directories_and_any_guest_uid_reaches_its_own_socket(host: Host) -> None:
    directory = host.uplink.directory
    assert stat.S_IMODE(directory.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(directory.stat().st_mode) == 0o755
    assert stat.S_IMODE((directory / "uplink.sock").stat().st_mode) == 0o666


def test_a_directory_too_deep_for_sockets_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="107 are possible"):
        UplinkHub(tmp_path / ("x" * 90), lambda *_: None).prepare()


@pytest.mark.expected_logs("uplink refused")
async def test_a_good_hello_gives_a_connection_and_its_session_replaces_the_token(host: Host) -> None:
    _, writer, reply = await host.greet()
    assert reply["identity"]["env"] == {"A": "1"}  # type: ignore[index]
    assert host.remembered == [(ID, hash_secret(SESSION))]
    await until(lambda: len(host.uplink.pool) == 1)
    _, thief, refusal = await host.greet(session="t" * 32)
    assert refusal["refused"] == "unknown token"
    writer.close()
    thief.close()


@pytest.mark.expected_logs("uplink refused")
async def test_a_refused_guest_hears_why_and_the_connection_ends(host: Host) -> None:
    reader, writer, reply = await host.greet(token="wrong")
    assert reply == {"identity": None, "reborn": False, "refused": "unknown token"}
    writer.close()
    assert await reader.read() == b""
    assert len(host.uplink.pool) == 0


@pytest.mark.parametrize("data", [b"x" * 5000, b"x" * 5000 + b"\n"])
async def test_a_hello_longer_than_4_kib_ends_the_connection(host: Host, data: bytes) -> None:
    reader, writer = await host.dial()
    writer.write(data)
    async with asyncio.timeout(30):
        assert await until_closed(reader) == b""
    writer.close()


async def test_a_guest_that_says_nothing_is_hung_up_on(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hub, "HELLO_TIMEOUT_S", 0.05)
    reader, writer = await host.dial()
    async with asyncio.timeout(30):
        assert await until_closed(reader) == b""
    writer.close()


async def test_connections_without_a_hello_are_bounded(host: Host) -> None:
    dialled = [await host.dial() for _ in range(40)]
    await until(lambda: len(host.uplink._greetings) == _hub.MAX_GREETING)
    ends = {asyncio.create_task(until_closed(reader)) for reader, _ in dialled}
    await until(lambda: sum(end.done() for end in ends) == 40 - _hub.MAX_GREETING)
    for _, writer in dialled:
        writer.close()
    await asyncio.gather(*ends)


async def test_an_idle_connection_that_dies_leaves_the_pool_at_once(host: Host) -> None:
    _, writer, _ = await host.greet()
    await until(lambda: len(host.uplink.pool) == 1)
    writer.close()
    await until(lambda: len(host.uplink.pool) == 0)


async def test_an_idle_guest_that_speaks_is_hung_up_on(host: Host) -> None:
    """A second answer, sent late, must never become the answer to the next request."""
    _, writer, _ = await host.greet()
    await until(lambda: len(host.uplink.pool) == 1)
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    await until(lambda: len(host.uplink.pool) == 0)
    writer.close()


async def test_bytes_that_come_with_the_hello_spoil_the_connection(host: Host) -> None:
    reader, writer = await host.dial()
    hello = {
        "protocol": PROTOCOL_VERSION,
        "sandbox_id": ID,
        "epoch": "e1",
        "guest_epoch": "g",
        "token": "boot",
        "session": SESSION,
    }
    writer.write(json.dumps(hello).encode() + b"\nHTTP/1.1 200 OK\r\n\r\n")
    assert await reader.readline()
    assert await until_closed(reader) == b""
    assert len(host.uplink.pool) == 0
    writer.close()


async def test_waiters_are_served_in_order_and_a_bound_ends_the_wait(host: Host) -> None:
    with pytest.raises(SandboxUnreachable) as caught:
        await host.uplink.pool.take(bound_s=0.01)
    assert caught.value.details["bound_s"] == 0.01
    first = asyncio.create_task(host.uplink.pool.take(30))
    second = asyncio.create_task(host.uplink.pool.take(30))
    await asyncio.sleep(0)
    _, writer, _ = await host.greet()
    wire = await first
    assert not second.done()
    host.uplink.pool.put(wire)
    assert await second is wire
    writer.close()


async def test_a_waiter_that_was_cancelled_loses_no_connection(host: Host) -> None:
    waiting = asyncio.create_task(host.uplink.pool.take(30))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    _, writer, _ = await host.greet()
    await until(lambda: len(host.uplink.pool) == 1)
    writer.close()


async def test_closing_tells_those_who_wait(host: Host) -> None:
    waiting = asyncio.create_task(host.uplink.pool.take(60))
    await asyncio.sleep(0)
    host.hub.remove(ID)
    with pytest.raises(SandboxUnreachable):
        await waiting
    with pytest.raises(SandboxUnreachable):
        await host.uplink.pool.take(60)
    assert not host.uplink.directory.exists()


async def test_a_full_pool_closes_used_connections_and_keeps_fresh_ones(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest replaces a fresh one at once: closing those would make it dial for ever."""
    monkeypatch.setattr(_pool, "MAX_IDLE", 2)
    pool = host.uplink.pool
    guests = [(await host.greet())[1] for _ in range(2)]
    await until(lambda: len(pool) == 2)
    wires = [await pool.take(), await pool.take()]
    for wire in wires:
        pool.put(wire)
    guests.append((await host.greet())[1])
    await until(lambda: wires[0].closed)
    assert not wires[1].closed
    assert len(pool) == 2
    for guest in guests:
        guest.close()


async def test_a_new_server_listens_where_the_old_one_did(host: Host) -> None:
    inode = host.uplink.directory.stat().st_ino
    host.hub.close()
    assert host.uplink.directory.exists()
    host.uplink = await host.hub.listen(EXPECTED)
    assert host.uplink.directory.stat().st_ino == inode
    _, writer, reply = await host.greet()
    assert reply["refused"] is None
    writer.close()


async def test_a_writer_waits_for_a_guest_that_does_not_read(host: Host) -> None:
    reader, writer, _ = await host.greet()
    wire = await host.uplink.pool.take(30)
    sending = asyncio.create_task(wire.write(b"x" * 4_000_000))
    done, _ = await asyncio.wait({sending}, timeout=0.1)
    assert not done
    assert len(await reader.readexactly(4_000_000)) == 4_000_000
    await sending
    writer.close()
    wire.close()


async def test_a_guest_that_sends_faster_than_we_read_waits(host: Host) -> None:
    _, writer, _ = await host.greet()
    wire = await host.uplink.pool.take(30)
    writer.write(b"y" * 8_000_000)
    await asyncio.sleep(0.1)
    assert len(wire._buffer) < 1_000_000
    got = 0
    while got < 8_000_000:
        got += len(await wire.read())
    writer.close()
    assert await wire.read() == b""
    with pytest.raises(WireClosed):
        await wire.write(b"z")


async def test_descriptors_are_given_back(short_dir: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    host = Host(short_dir)
    host.uplink = await host.hub.listen(EXPECTED)
    for _ in range(20):
        _, writer, _ = await host.greet()
        writer.close()
    host.hub.close()
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    assert os.path.isdir(host.uplink.directory)


@pytest.mark.expected_logs("uplink refused")
async def test_a_guest_of_another_protocol_fails_the_start_at_once(host: Host) -> None:
    """It used to be waited for until the start's bound of a minute."""
    waiting = asyncio.create_task(host.uplink.wait_greeted())
    _, writer, reply = await host.greet(protocol=1)
    assert reply["refused"] == f"the protocol is not {PROTOCOL_VERSION}"
    with pytest.raises(SandboxStartFailed, match="speaks protocol 1") as caught:
        await asyncio.wait_for(waiting, 30)
    assert caught.value.hint == "rebuild the image: cloche image build"
    writer.close()


@pytest.mark.expected_logs("uplink refused")
async def test_a_stranger_does_not_fail_the_start(host: Host) -> None:
    waiting = asyncio.create_task(host.uplink.wait_greeted())
    _, stranger, _ = await host.greet(token="guess")
    _, writer, _ = await host.greet()
    await asyncio.wait_for(waiting, 30)
    stranger.close()
    writer.close()


async def test_a_guest_out_of_a_checkpoint_learns_who_it_is_and_must_dial_again(short_dir: Path) -> None:
    host = Host(short_dir)
    restored = replace(EXPECTED, token_hash=hash_secret(SESSION), previous=("b" * 20, "e0"), reason="fork")
    host.uplink = await host.hub.listen(restored)
    reader, writer, reply = await host.greet(sandbox_id="b" * 20, epoch="e0")
    assert reply["reborn"]
    writer.close()
    assert await until_closed(reader) == b""
    assert not host.uplink.greeted.is_set()
    _, writer, reply = await host.greet(token=SESSION, session="n" * 32)
    assert not reply["reborn"]
    await until(host.uplink.greeted.is_set)
    assert host.remembered == [(ID, hash_secret("n" * 32))]
    writer.close()
    host.hub.close()


async def test_a_connection_taken_as_soon_as_it_was_accepted_outlives_the_end_of_the_listening(host: Host) -> None:
    """It counted as one that is still being greeted, and was closed under the call that had it; seen with real guests."""
    host.uplink.pool.hold()

    async def take_and_stop() -> Wire:
        wire = await host.uplink.pool.take_held()
        host.uplink.stop_listening()
        return wire

    taking = asyncio.create_task(take_and_stop())
    _, writer, _ = await host.greet()
    await (await taking).write(b"x")
    assert not taking.result().closed
    writer.close()


async def test_a_held_pool_gives_connections_to_nobody_but_the_server(host: Host) -> None:
    _, writer, _ = await host.greet()
    pool = host.uplink.pool
    await until(lambda: len(pool) == 1)
    pool.hold()
    with pytest.raises(SandboxUnreachable):
        await pool.take(0.01)
    waiting = asyncio.create_task(pool.take())
    wire = await pool.take_held()
    assert pool.calls == 1
    pool.put(wire)
    assert not waiting.done()
    pool.go_on()
    assert await waiting is wire
    writer.close()


async def test_calls_end_and_streams_do_not_keep_a_pool_from_being_drained(host: Host) -> None:
    greeted = [await host.greet() for _ in range(2)]
    pool = host.uplink.pool
    await until(lambda: len(pool) == 2)
    call, stream = await pool.take(), await pool.take()
    stream.endless = True
    assert (pool.calls, pool.working) == (1, 1)
    call.looks = True
    assert (pool.calls, pool.working) == (1, 0)
    draining = asyncio.create_task(pool.drained(30))
    await asyncio.sleep(0)
    assert not draining.done()
    pool.put(call)
    await draining
    assert pool.calls == 0
    for _, writer, _ in greeted:
        writer.close()


async def test_a_connection_that_is_accepted_as_the_listening_ends_is_closed(host: Host) -> None:
    """asyncio left it open until it was collected as garbage, and said so in whatever test that happened."""
    accepted = asyncio.Event()
    loop = asyncio.get_running_loop()
    real = loop._accept_connection2  # type: ignore[attr-defined]

    def accepting(*args: object) -> object:
        accepted.set()
        loop.call_soon(host.uplink.stop_listening)
        return real(*args)

    loop._accept_connection2 = accepting  # type: ignore[attr-defined]
    reader, writer = await host.dial()
    async with asyncio.timeout(30):
        assert await until_closed(reader) == b""
    assert accepted.is_set()
    assert len(host.uplink._greetings) == 0
    writer.close()
