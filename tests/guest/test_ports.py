"""Ports: what is listed, what is told, and the tunnel into a port. Real sockets, a real guest."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from guest_process import Guest, parse_sse, wait_for

from cloche.errors import PortClosed
from cloche_guest.ports import _tunnel
from cloche_guest.ports._holders import find_holders, sockets_of
from cloche_guest.ports._table import Listener, parse_listeners, sockets_in_use
from cloche_guest.ports._tunnel import connect_app, relay

BIG = 32 * 1024 * 1024


@contextlib.contextmanager
def listening(host: str = "127.0.0.1", family: int = socket.AF_INET) -> Iterator[socket.socket]:
    with socket.socket(family) as made:
        made.bind((host, 0))
        made.listen()
        made.settimeout(60)
        yield made


def port_of(made: socket.socket) -> int:
    return int(made.getsockname()[1])


def listed(guest: Guest) -> dict[int, dict[str, object]]:
    return {item["port"]: item for item in guest.call("GET", "/v1/ports")["items"]}


@contextlib.contextmanager
def tunnel(guest: Guest, port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", guest.port)) as made:
        made.settimeout(60)
        lines = [f"POST /v1/ports/{port}/connect HTTP/1.1", "Host: guest", "Connection: Upgrade", "Upgrade: cloche-tcp"]
        made.sendall("\r\n".join([*lines, "", ""]).encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = made.recv(1)
            assert byte, head
            head += byte
        assert head.startswith(b"HTTP/1.1 101 "), head
        yield made


def received(made: socket.socket) -> bytes:
    """Everything up to the end."""
    parts = []
    while data := made.recv(65_536):
        parts.append(data)
    return b"".join(parts)


# Pure


def test_tables_of_linux_and_of_gvisor_are_read_alike() -> None:
    linux = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode  \n"
        "   0: 0100007F:1389 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 6170265 1 0 100 0 0 10 0 \n"
        "   1: 0100007F:1389 0100007F:9000 01 00000000:00000000 00:00000000 00000000  1000  0 6170999 1 0 20 4 30 10 -1\n"
        "   2: 00000000:138A 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000  0 6170266 1 0 100 0 0 10 0 \n"
    )
    gvisor = (
        "  sl  local_address                         remote_address       st tx_queue rx_queue tr tm->when retrnsmt ...\n"
        "  38: 00000000000000000000000001000000:138B 00000000000000000000000000000000:0000 0A 00000000:00000000 "
        "00:00000000 00000000  1000        0       39 1 0000000000000000 0 0 0 0 -1\n"
    )
    assert parse_listeners(linux) == [Listener(5001, "127.0.0.1", 6170265), Listener(5002, "0.0.0.0", 6170266)]
    assert parse_listeners(gvisor) == [Listener(5003, "::1", 39)]
    assert parse_listeners("header\nnonsense\n") == []


def test_only_the_counts_of_this_sandbox_matter() -> None:
    text = "sockets: used 38\nTCP: inuse 1 orphan 9 tw 7 alloc 30 mem 188\nUDP: inuse 0 mem 0\n"
    assert sockets_in_use(text) == ("TCP: inuse 1",)


def test_a_holder_is_found_by_the_inode_of_its_socket() -> None:
    with listening() as made:
        inode = os.fstat(made.fileno()).st_ino
        assert inode in sockets_of(os.getpid())
        assert find_holders({inode})[inode].pid == os.getpid()
        assert "pytest" in find_holders({inode})[inode].command
    assert find_holders({inode}) == {}


# The list


@pytest.mark.parametrize(
    ("family", "host"),
    [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1"), (socket.AF_INET6, "::")],
)
def test_a_port_is_listed_with_who_holds_it(guest: Guest, family: int, host: str) -> None:
    with listening(host, family) as made:
        found = listed(guest)[port_of(made)]
        assert found["addresses"] == [host]
        assert found["process"]["pid"] == os.getpid()  # type: ignore[index]
        port = port_of(made)
    assert port not in listed(guest)


def test_the_port_of_the_guest_itself_is_neither_listed_nor_reached(guest: Guest) -> None:
    assert guest.port not in listed(guest)
    answer = guest.call("POST", f"/v1/ports/{guest.port}/connect", status=400)
    assert answer["code"] == "invalid_request"
    response = guest.http.post(
        f"/v1/ports/{guest.port}/connect", headers={"Connection": "Upgrade", "Upgrade": "cloche-tcp"}
    )
    assert (response.status_code, response.json()["code"]) == (503, "port_closed")


def test_opening_and_closing_are_told(guest: Guest) -> None:
    with guest.http.stream("GET", "/v1/events") as response:
        events = parse_sse(response.iter_lines())
        with listening() as made:
            port = port_of(made)
            opened = next(e for e in events if e["type"] == "port_opened" and e["data"]["port"] == port)
            assert opened["data"]["process"]["pid"] == os.getpid()
        assert next(e for e in events if e["type"] == "port_closed" and e["data"]["port"] == port)


# The tunnel


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_bytes_go_both_ways_and_each_side_may_end_first(guest: Guest, family: int, host: str) -> None:
    with listening(host, family) as server, tunnel(guest, port_of(server)) as outside:
        inside, _ = server.accept()
        with inside:
            inside.settimeout(60)
            outside.sendall(b"question")
            outside.shutdown(socket.SHUT_WR)
            assert received(inside) == b"question"
            inside.sendall(b"the answer, after the other side has ended")
            inside.close()
            assert received(outside) == b"the answer, after the other side has ended"


def test_the_app_may_end_its_side_and_still_listen(guest: Guest) -> None:
    with listening() as server, tunnel(guest, port_of(server)) as outside:
        inside, _ = server.accept()
        with inside:
            inside.settimeout(60)
            inside.sendall(b"bye")
            inside.shutdown(socket.SHUT_WR)
            assert received(outside) == b"bye"
            outside.sendall(b"one more thing")
            outside.close()
            assert received(inside) == b"one more thing"


def test_bytes_are_identical_and_a_slow_reader_is_waited_for(guest: Guest) -> None:
    """superradcompany/microsandbox#914: response bytes dropped under backpressure."""
    data = os.urandom(1 << 20) * (BIG >> 20)
    with listening() as server, tunnel(guest, port_of(server)) as outside:
        inside, _ = server.accept()
        with inside:
            inside.settimeout(60)
            memory = guest.health()["memory_bytes"]
            sending = threading.Thread(target=lambda: (inside.sendall(data), inside.shutdown(socket.SHUT_WR)))
            sending.start()
            sent_all = not wait_until_blocked(sending)
            grown = guest.health()["memory_bytes"] - memory
            assert not sent_all
            assert grown < 8 * 1024 * 1024
            assert received(outside) == data
            sending.join()


def wait_until_blocked(sending: threading.Thread) -> bool:
    """True when it has not ended after what would be ample time for it."""
    sending.join(0.5)
    return sending.is_alive()


def test_nothing_listens_is_said_at_once(guest: Guest) -> None:
    with listening() as made:
        port = port_of(made)
    began = time.monotonic()
    response = guest.http.post(f"/v1/ports/{port}/connect", headers={"Connection": "Upgrade", "Upgrade": "cloche-tcp"})
    assert response.status_code == 503
    assert response.json()["code"] == "port_closed"
    assert response.json()["details"] == {"port": port, "reason": "refused"}
    assert time.monotonic() - began < 30


async def test_an_app_that_takes_no_connections_is_bounded() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(full.getsockname())
            with pytest.raises(PortClosed, match=r"took a connection within 0\.3 s") as error:
                await connect_app(port_of(full), 0.3)
            assert error.value.details == {"port": port_of(full), "reason": "timeout"}


@pytest.mark.parametrize("port", ["0", "65536", "-1", "8080@evil", "08080", "99999999999999999999"])
def test_what_is_no_port_is_not_found(guest: Guest, port: str) -> None:
    answer = guest.call("POST", f"/v1/ports/{port}/connect", status=404)
    assert answer["code"] == "not_found"


def test_an_app_learns_that_the_server_has_hung_up(guest: Guest) -> None:
    """A visitor that goes away while an app sends nothing: the app's connection must not stay for ever."""
    with listening() as server:
        with tunnel(guest, port_of(server)):
            inside, _ = server.accept()
        with inside:
            inside.settimeout(60)
            assert inside.recv(1) == b""
            wait_for(lambda: is_reset(inside), "the app's connection to be closed in both directions")


async def test_an_app_that_says_nothing_is_let_go_when_the_server_has_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends nothing has no other way to learn of it. Both connections stayed for as long as the app waited."""
    monkeypatch.setattr(_tunnel, "HANG_UP_LOOK_S", 0.02)
    loop = asyncio.get_running_loop()
    server, outer = socket.socketpair()
    with listening() as app, server:
        inner = await connect_app(port_of(app))
        inside, _ = app.accept()
        with inside:
            for each in (server, inside):
                each.setblocking(False)
            relaying = asyncio.create_task(relay(outer, inner, b"first"))
            assert await loop.sock_recv(server, 10) == b"first"
            await loop.sock_sendall(server, b"last")
            server.close()
            async with asyncio.timeout(60):
                await relaying
                assert await loop.sock_recv(inside, 10) == b"last"


def is_reset(made: socket.socket) -> bool:
    try:
        made.send(b"x")
    except OSError:
        return True
    return False


def test_tunnels_leave_nothing_open(guest: Guest) -> None:
    before = guest.health()["open_files"]
    for _ in range(50):
        with listening() as server, tunnel(guest, port_of(server)):
            server.accept()[0].close()
    # A leak would be 50 at least; a kernel that is made ahead meanwhile takes some.
    wait_for(lambda: guest.health()["open_files"] < before + 40, "descriptors to be closed")
