"""`cloche volumes`, `cloche usage`, `cloche top`."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from datetime import datetime, timedelta

import pytest
from played_run import NOW
from protocol_app import KEY, App, Server

from cloche import Client
from cloche.cli._amounts import bytes_of, duration_of
from cloche.cli._top import Seen, cells_of, lines_of, look
from cloche.models import Usage

OWN_TERMINAL = "import os; os.close(os.open(os.ttyname(0), os.O_RDWR)); from cloche.cli import main; main()"
"""The first terminal that the leader of a session opens is its own: then Ctrl-C is a signal for it."""


@pytest.fixture
def box(run_cloche) -> str:
    return run_cloche("create", "--name", "box").out.strip()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (10 * 1024, "10 KiB"),
        (3 * 2**40, "3.0 TiB"),
        (2**60, "1048576 TiB"),
    ],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert bytes_of(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (3660, "1h01m"), (90_000, "1d01h")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert duration_of(seconds) == text


def test_volumes_on_the_command_line(run_cloche, app: App) -> None:
    done = run_cloche("volumes", "create", "data", "--size", "64", "-l", "k=v")
    assert (done.code, done.err) == (0, "data: 64 MiB\n")
    volume_id = done.out.strip()
    assert app.bodies == [{"name": "data", "size_mb": 64, "labels": {"k": "v"}}]
    listed = run_cloche("volumes", "ls").out
    assert "data" in listed
    assert "64 MiB" in listed
    assert json.loads(run_cloche("volumes", "ls", "--json").out)[0]["id"] == volume_id
    assert "no sandbox" in run_cloche("volumes", "show", "data").out
    assert json.loads(run_cloche("volumes", "show", volume_id, "--json").out)["name"] == "data"
    assert run_cloche("volumes", "create", "data").code == 3
    done = run_cloche("volumes", "rm", "nothing", "data")
    assert (done.code, done.out) == (3, f"deleted data ({volume_id})\n")
    assert "nothing" in done.err
    assert run_cloche("volumes", "rm", "data").code == 3


def test_create_attaches_volumes(run_cloche, app: App) -> None:
    run_cloche("volumes", "create", "data")
    sandbox = run_cloche("create", "--volume", "data:/data", "-v", "data:/again:ro").out.strip()
    assert app.bodies[-1]["volumes"] == [
        {"volume": "data", "path": "/data", "read_only": False},
        {"volume": "data", "path": "/again", "read_only": True},
    ]
    assert "data at /again (read-only)" in run_cloche("show", sandbox).out
    assert sandbox in run_cloche("volumes", "show", "data").out
    done = run_cloche("volumes", "rm", "data")
    assert done.code == 3
    assert sandbox in done.err


@pytest.mark.parametrize("text", ["data", "data:", "data:relative", ":/data", "/data"])
def test_what_is_no_attachment_is_wrong_usage(run_cloche, text: str) -> None:
    done = run_cloche("create", "--volume", text)
    assert done.code == 2
    assert "VOLUME:PATH" in done.err


def test_usage_of_one_and_of_all(run_cloche, box: str) -> None:
    shown = run_cloche("usage", "box").out
    assert "100 MiB now, 200 MiB at most" in shown
    assert json.loads(run_cloche("usage", "box", "--json").out)["processes"] == 7
    assert box in run_cloche("usage").out
    assert [one["sandbox_id"] for one in json.loads(run_cloche("usage", "--json").out)] == [box]
    assert run_cloche("usage", "box", "--deleted").code == 2
    assert run_cloche("usage", "nothing").code == 3


def usage(sandbox_id: str, cpu_s: float, at: datetime, memory: int = 0) -> Usage:
    return Usage(
        sandbox_id=sandbox_id,
        cpu_s=cpu_s,
        memory_bytes=memory,
        memory_peak_bytes=memory,
        memory_mb_s=0,
        disk_bytes=0,
        uplink_received_bytes=0,
        uplink_sent_bytes=0,
        processes=1,
        running_s=1,
        as_of=at,
    )


def test_top_compares_two_looks_and_puts_the_busiest_first(run_cloche, client: Client) -> None:
    quiet, busy, new = (run_cloche("create").out.strip() for _ in range(3))
    sandboxes = look(client, None).sandboxes
    later = NOW + timedelta(seconds=2)
    before = Seen(sandboxes, {quiet: usage(quiet, 1, NOW), busy: usage(busy, 1, NOW)})
    now = Seen(
        sandboxes,
        {quiet: usage(quiet, 1, later, 5), busy: usage(busy, 4, later), new: usage(new, 9, later, 7)},
    )
    lines = lines_of(now, before)
    assert [(line.sandbox.id, line.cpu_percent) for line in lines] == [(busy, 150), (new, None), (quiet, 0)]
    assert [line.idle_s for line in lines] == [2, 2, 2]
    assert cells_of(lines[0])[3:] == ("150.0", "0 B", "0 B", "1", "2s")
    assert cells_of(lines[1])[3] == ""
    assert all(line.cpu_percent is None for line in lines_of(now, None))


def test_top_without_a_second_of_difference_claims_nothing(run_cloche, client: Client) -> None:
    box = run_cloche("create").out.strip()
    seen = Seen(look(client, None).sandboxes, {box: usage(box, 1, NOW)})
    assert lines_of(seen, seen)[0].cpu_percent is None


def test_top_once_for_scripts(run_cloche, box: str) -> None:
    (line,) = json.loads(run_cloche("top", "--json").out)["sandboxes"]
    assert (line["id"], line["name"], line["cpu_percent"], line["processes"]) == (box, "box", 50.0, 7)
    done = run_cloche("top", "--once")
    head, row = done.out.splitlines()
    assert head.split()[:3] == ["SANDBOX", "NAME", "STATE"]
    assert row.split()[:4] == [box, "box", "running", "50.0"]


@pytest.mark.parametrize("end", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_top_refreshes_until_it_is_left(server: Server, run_cloche, box: str, end: bytes) -> None:
    """On a real terminal; the screen of before comes back."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", OWN_TERMINAL, "top", "--interval", "0.5"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={
            **os.environ,
            "CLOCHE_URL": server.url,
            "CLOCHE_API_KEY": KEY,
            "TERM": "xterm",
            "COLUMNS": "120",
            "LINES": "30",
        },
        start_new_session=True,
    )
    os.close(terminal)
    shown = b""
    try:
        while shown.count(box.encode()) < 2 or b"50.0" not in shown:  # two frames, the second with the CPU
            assert select.select([controller], [], [], 60)[0], shown
            shown += os.read(controller, 65536)
        os.write(controller, end)
        try:
            while chunk := os.read(controller, 65536):
                shown += chunk
        except OSError:  # its end of the terminal is closed
            pass
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(controller)
    assert b"1 sandboxes, 1 running" in shown
    assert b"\x1b[?1049h" in shown
    assert b"\x1b[?1049l" in shown[shown.rindex(b"\x1b[?1049h") :]
