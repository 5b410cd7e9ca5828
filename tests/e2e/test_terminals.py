"""Terminals through the whole of it: SDK's stream, server, uplink, guest, PTY; on both drivers."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from cloche.models.terminals import TerminalExit

from .server_process import ServerProcess, memory_kib

sys.path.insert(0, str(Path(__file__).parents[1] / "guest" / "terminals"))

from flood import check_received, flood_command, read_with_cuts
from viewer import Viewer


def open_terminal(client: httpx.Client, sandbox_id: str, *argv: str, **body: Any) -> dict[str, Any]:
    answer = client.post(f"/v1/sandboxes/{sandbox_id}/terminals", json={**({"argv": [*argv]} if argv else {}), **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def attach(
    server: ServerProcess,
    sandbox_id: str,
    terminal: dict[str, Any],
    key: str | None = None,
    client: str = "viewer-0001",
) -> Viewer:
    url = f"ws://127.0.0.1:{server.port}/v1/sandboxes/{sandbox_id}/terminals/{terminal['id']}/attach"
    return Viewer(url, client, headers={"Authorization": f"Bearer {key or server.key}"})


def closed_with(viewer: Viewer) -> tuple[int, object]:
    """Code and reason, once it is closed."""
    return viewer.until_closed(), json.loads(viewer.close_reason)


def test_a_shell_in_a_sandbox(
    server: ServerProcess, client: httpx.Client, make_sandbox: Callable[..., str], driver: str
) -> None:
    sandbox_id = make_sandbox(driver=driver)
    terminal = open_terminal(client, sandbox_id, cols=90, rows=30)
    assert terminal["argv"] == ["/bin/bash"]
    viewer = attach(server, sandbox_id, terminal)
    viewer.type("stty size; whoami; pwd; tty\n")
    said = viewer.until(rb"30 90\r\nuser\r\n/workspace\r\n/dev/pts/\d+\r\n")
    assert b"no job control" not in said
    viewer.type("sh -c 'echo started; exec sleep 100'\n")  # says so when it has the terminal already
    viewer.until(r"[\r\n]started\r\n")
    viewer.type(b"\x03")
    viewer.until(rb"\^C|\x03")  # gVisor's terminals echo it as it is
    viewer.type("python3 -c 'print(6*7)'; exit 3\n")
    viewer.until(rb"[\r\n]42\r\n")
    assert viewer.until_closed() == 1000
    assert viewer.exit is not None
    assert viewer.exit.code == 3
    recording = client.get(f"/v1/sandboxes/{sandbox_id}/terminals/{terminal['id']}/recording")
    assert recording.headers["Content-Type"] == "application/x-asciicast"
    assert recording.headers["Content-Disposition"] == "attachment"
    assert '"width": 90' in recording.text.splitlines()[0]


def test_a_viewer_key_and_a_share_watch_only(
    server: ServerProcess, client: httpx.Client, make_sandbox: Callable[..., str]
) -> None:
    sandbox_id = make_sandbox(driver="runc")
    terminal = open_terminal(client, sandbox_id, "cat")
    share = client.post(f"/v1/sandboxes/{sandbox_id}/terminals/{terminal['id']}/share", json={}).json()
    watcher = attach(server, sandbox_id, terminal, share["token"])
    watcher.type("boo\n")
    writer = attach(server, sandbox_id, terminal)
    writer.type("hello\n")
    assert watcher.until("hello\r\nhello\r\n") == b"hello\r\nhello\r\n"
    assert watcher.stream.role == "read_only"
    watcher.close()
    writer.close()


def test_whoever_watches_by_a_revoked_link_is_cut_off_and_nobody_else(
    server: ServerProcess, client: httpx.Client, make_sandbox: Callable[..., str]
) -> None:
    sandbox_id = make_sandbox(driver="runc")
    terminal = open_terminal(client, sandbox_id, "cat")
    path = f"/v1/sandboxes/{sandbox_id}/terminals/{terminal['id']}"
    revoked, kept = [client.post(f"{path}/share", json={}).json() for _ in range(2)]
    cut = attach(server, sandbox_id, terminal, revoked["token"])
    stays = attach(server, sandbox_id, terminal, kept["token"], client="viewer-0002")
    watchers = {item["id"]: item["watchers"] for item in client.get(f"{path}/shares").json()["items"]}
    assert watchers == {revoked["id"]: 1, kept["id"]: 1}
    assert client.delete(f"{path}/shares/{revoked['id']}").json()["watchers"] == 1
    assert closed_with(cut) == (4401, {"code": "unauthenticated", "message": "the link was revoked"})
    with pytest.raises(InvalidStatus, match="401"):
        attach(server, sandbox_id, terminal, revoked["token"])
    writer = attach(server, sandbox_id, terminal, client="viewer-0003")
    writer.type("hello\n")
    assert stays.until("hello\r\nhello\r\n") == b"hello\r\nhello\r\n"
    stays.close()
    writer.close()


def test_whoever_watches_by_a_link_is_cut_off_when_it_is_over(
    server: ServerProcess, client: httpx.Client, make_sandbox: Callable[..., str]
) -> None:
    sandbox_id = make_sandbox(driver="runc")
    terminal = open_terminal(client, sandbox_id, "cat")
    watcher = attach_by_a_short_link(server, client, sandbox_id, terminal)
    assert closed_with(watcher) == (4401, {"code": "unauthenticated", "message": "the link is over"})


def attach_by_a_short_link(
    server: ServerProcess, client: httpx.Client, sandbox_id: str, terminal: dict[str, Any]
) -> Viewer:
    """On a slow machine the link may be over before it is used: that is refused, and rightly."""
    for ttl_s in (2, 8, 32):
        began = time.monotonic()
        path = f"/v1/sandboxes/{sandbox_id}/terminals/{terminal['id']}/share"
        token = client.post(path, json={"ttl_s": ttl_s}).json()["token"]
        try:
            return attach(server, sandbox_id, terminal, token)
        except InvalidStatus:
            assert time.monotonic() - began > ttl_s
    raise AssertionError("every link was over before it was used")


def test_output_is_the_same_over_a_killed_server(own_server: ServerProcess, driver: str) -> None:
    """kill -9: the program goes on, the viewer comes back to where it was."""
    count = 200
    with own_server.client() as client:
        sandbox_id = client.post("/v1/sandboxes", json={"driver": driver}).json()["id"]
        program = f"i=0; while [ $i -lt {count} ]; do echo line $i; i=$((i+1)); sleep 0.01; done; echo end"
        terminal = open_terminal(client, sandbox_id, "sh", "-c", program)
        viewer = attach(own_server, sandbox_id, terminal)
        viewer.until("line 20\r\n")
        own_server.kill()
        viewer.cut()
        own_server.start()
        viewer.attach()
        viewer.until("end\r\n", 90)
        viewer.close()
    assert viewer.received == b"".join(b"line %d\r\n" % i for i in range(count)) + b"end\r\n"
    assert viewer.gaps == []


FLOOD_MB = int(os.environ.get("CLOCHE_TEST_FLOOD_MB", "3"))


@pytest.mark.timeout(180 + 5 * FLOOD_MB)
def test_no_byte_is_lost_or_repeated_over_cuts_and_a_killed_server(own_server: ServerProcess, driver: str) -> None:
    """The connection is cut all the time, and the server is killed in the middle. CLOCHE_TEST_FLOOD_MB=200 is the long form."""

    def killed() -> None:
        own_server.kill()
        own_server.start()
        kills.append(driver)

    kills: list[str] = []
    size = FLOOD_MB * 1_000_000
    with own_server.client() as client:
        sandbox_id = client.post("/v1/sandboxes", json={"driver": driver}).json()["id"]
        terminal = open_terminal(client, sandbox_id, *flood_command(size), record=False)
        viewer = attach(own_server, sandbox_id, terminal)
        cuts = read_with_cuts(viewer, size, killed)
    assert (len(kills), cuts >= 20) == (1, True), cuts
    assert viewer.exit == TerminalExit(code=0)
    check_received(viewer, size)


@pytest.mark.parametrize("size", [30_000_000])
def test_a_flood_passes_with_flat_memory(
    server: ServerProcess, client: httpx.Client, make_sandbox: Callable[..., str], size: int
) -> None:
    """A viewer that reads holds the program back, unless nothing moves for 5 s: then the program goes on without it. A machine
    that stands still for so long is seen here, and may leave a gap, which is said; nothing else may."""
    sandbox_id = make_sandbox(driver="runc")
    program = f"while [ ! -e /tmp/go ]; do sleep 0.02; done; head -c {size} /dev/zero"
    terminal = open_terminal(client, sandbox_id, "sh", "-c", program, record=False)
    viewer = attach(server, sandbox_id, terminal)
    before = memory_kib(server.pid)
    # Not typed: for whoever types, a viewer that does not read for 0.5 s holds nothing up, and has a gap.
    client.post(f"/v1/sandboxes/{sandbox_id}/exec", json={"argv": ["touch", "/tmp/go"]}).raise_for_status()
    longest_s, heard_at = 0.0, time.monotonic()
    while viewer.exit is None and viewer.pump(60):  # of silence; seconds on a busy machine
        viewer.received.clear()
        now = time.monotonic()
        longest_s, heard_at = max(longest_s, now - heard_at), now
    assert (viewer.exit, viewer.position) == (TerminalExit(code=0), size)
    assert viewer.gaps == [] or longest_s > 2.5
    assert memory_kib(server.pid) - before < 20_000
