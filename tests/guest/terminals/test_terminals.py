"""Terminals of a real guest on real PTYs."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flood import KEPT_BYTES, check_received, digest, flood_command, read_with_cuts
from guest_process import Guest, is_running, running_guest, wait_for
from viewer import Viewer
from websockets.exceptions import InvalidStatus

from cloche._terminal_stream import Resized
from cloche_guest.terminals.log import Dimensions
from cloche_guest.terminals.recording import OUTPUT, Recording

Make = Callable[..., dict[str, Any]]
Attach = Callable[..., Viewer]


def test_a_shell_with_job_control_of_its_own(terminal: Make, attach: Attach) -> None:
    made = terminal(cols=100, rows=30)
    assert (made["state"], made["cols"], made["rows"]) == ("running", 100, 30)
    viewer = attach(made)
    viewer.type("tty; stty size; echo $TERM; ps -o pid=,sid=,tpgid= $$; exit 3\n")
    said = viewer.until(rb"pts/\d+\r\n30 100\r\nxterm-256color\r\n")
    assert b"no job control" not in said
    assert viewer.until_closed() == 1000
    assert viewer.exit is not None
    assert viewer.exit.code == 3


def test_env_and_cwd_are_those_of_contexts_and_can_be_chosen(guest: Guest, terminal: Make, attach: Attach) -> None:
    """Cloudflare #488, #470, #489: the environment was missing in the PTY."""
    code = "import os; ' '.join(os.environ[name] for name in ('HOME', 'PATH', 'LANG'))"
    kernel = guest.create().value(code).strip("'")
    program = f"{code.replace('; ', '; print(')}, os.getcwd(), os.environ['A'])"
    made = terminal(sys.executable, "-c", program, env={"A": "b"}, cwd="/tmp", cols=1000)
    assert attach(made).until(rb"\r\n").decode().strip() == f"{kernel} /tmp b"
    assert made["env"] == ["A"]


def test_the_exit_stays_readable_and_so_does_the_output(guest: Guest, terminal: Make, attach: Attach) -> None:
    """Cloudflare 2.4: a dead PTY stayed cached, the next write threw, and no exit was ever sent."""
    made = terminal("sh", "-c", "printf 'last words'; exit 7")
    wait_for(lambda: guest.call("GET", f"/v1/terminals/{made['id']}")["state"] == "exited", "the exit")
    assert guest.call("GET", f"/v1/terminals/{made['id']}")["exit"] == {"code": 7, "signal": None}
    viewer = attach(made)
    viewer.until("last words")
    viewer.type("into the void\n")
    assert viewer.until_closed() == 1000


def test_ctrl_c_reaches_the_program(terminal: Make, attach: Attach) -> None:
    viewer = attach(terminal("sh", "-c", "trap 'echo got it; exit 5' INT; echo ready; while :; do sleep 0.1; done"))
    viewer.until("ready")
    viewer.type(b"\x03")
    viewer.until("got it")
    viewer.until_closed()
    assert viewer.exit is not None
    assert viewer.exit.code == 5


def test_a_lost_connection_resumes_without_a_lost_or_doubled_byte(terminal: Make, attach: Attach) -> None:
    viewer = attach(terminal("sh", "-c", "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; echo end"))
    rng = random.Random(7)
    while b"end\r\n" not in viewer.received:
        for _ in range(rng.randint(1, 4)):
            viewer.pump()
        viewer.cut()
        viewer.attach()
    assert viewer.received == b"".join(b"line %d\r\n" % i for i in range(3000)) + b"end\r\n"
    assert viewer.gaps == []


def test_hundreds_of_cuts_in_megabytes_of_anything(terminal: Make, attach: Attach) -> None:
    """CLOCHE_TEST_FLOOD_MB=200 is the long form."""
    size = int(os.environ.get("CLOCHE_TEST_FLOOD_MB", "6")) * 1_000_000
    viewer = attach(terminal(*flood_command(size), record=False))
    # Usually hundreds. A viewer that is behind gets four messages of 32 KiB at most between two, of what is kept at least.
    assert read_with_cuts(viewer, size) >= KEPT_BYTES // (4 * 32 * 1024)
    check_received(viewer, size)


def test_ctrl_c_works_within_a_second_under_a_flood_with_a_frozen_viewer(terminal: Make, attach: Attach) -> None:
    made = terminal("sh", "-c", "trap : INT; for n in 1 2 3 4 5; do yes; echo stopped $n; done; sleep 60", record=False)
    frozen = attach(made, "viewer-frozen")
    viewer = attach(made, "viewer-awake")
    viewer.until("y\r\ny\r\n")
    frozen.until("y\r\ny\r\n")
    for n in range(1, 6):  # once is enough: others may be busy now and then
        flooded = time.monotonic() + 1
        while time.monotonic() < flooded and viewer.pump(0.3):  # soon the program is held back for the frozen one
            viewer.received.clear()
        started = time.monotonic()
        viewer.type(b"\x03")
        viewer.until(f"stopped {n}")
        taken_s = time.monotonic() - started
        if taken_s < 1:
            return
    pytest.fail(f"it took {taken_s:.3f} s")


STALL_S = 1.5
"""Instead of five seconds."""


def test_a_frozen_viewer_holds_the_program_back_only_for_a_while(tmp_path: Path) -> None:
    with running_guest(before=f"from cloche_guest.terminals import session; session.STALL_S = {STALL_S}") as guest:
        line = f"until [ -e {tmp_path}/go ]; do sleep 0.01; done; head -c 3000000 /dev/zero"
        body = {"argv": ["sh", "-c", line], "record": False}
        path = f"/v1/terminals/{guest.call('POST', '/v1/terminals', body, status=201)['id']}"
        frozen = Viewer(f"ws://127.0.0.1:{guest.port}{path}/attach")
        began = datetime.now(UTC)
        (tmp_path / "go").touch()  # not before somebody looks, and not by a key: who types is waited for less
        wait_for(lambda: guest.call("GET", path)["state"] == "exited", "the end of the flood")
        ended = guest.call("GET", path)
        assert ended["head_offset"] == 3_000_000
        held_s = (datetime.fromisoformat(ended["exited_at"]) - began).total_seconds()
        assert held_s >= STALL_S  # from when it was held, which was later than `began`
        assert guest.health()["memory_bytes"] < 300_000_000
        frozen.close()


def test_two_viewers_and_the_hand_over_of_control(terminal: Make, attach: Attach) -> None:
    made = terminal("sh", "-c", "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done")
    one = attach(made, "viewer-one", cols=90, rows=30)
    one.until("30 90")
    two = attach(made, "viewer-two", cols=60, rows=20)
    two.until("30 90")  # they see the same, at the size of the one in control
    two.type("x")
    one.until("20 60")
    two.until("20 60")

    def know_it() -> bool:
        for viewer in (one, two):
            viewer.pump()
        return (one.stream.role, two.stream.role) == ("viewer", "controller") and Resized(60, 20) in one.events

    wait_for(know_it, "the hand-over and the size")


def test_a_read_only_viewer_watches_and_does_nothing_else(terminal: Make, attach: Attach) -> None:
    made = terminal("cat")
    watcher = attach(made, "viewer-watch", query="?access=read", cols=10, rows=10)
    watcher.type("boo\n")
    writer = attach(made, "viewer-write")
    writer.type("hello\n")
    watcher.until("hello\r\nhello\r\n")
    assert b"boo" not in watcher.received
    assert watcher.stream.role == "read_only"


def test_a_large_paste_arrives_whole(terminal: Make, attach: Attach) -> None:
    code = "import sys, tty, hashlib; tty.setraw(0); print('ready\\r'); n = int(sys.argv[1])"
    code += "; d = sys.stdin.buffer.read(n); print(hashlib.sha256(d).hexdigest())"
    paste = os.urandom(5_000_000)
    viewer = attach(terminal("python3", "-c", code, str(len(paste)), record=False))
    viewer.until("ready")
    viewer.type(paste)
    viewer.until(digest(paste))


def test_a_long_line_is_whole_where_the_program_edits_lines_itself(terminal: Make, attach: Attach) -> None:
    """benchflow-ai/benchflow#896: lines over 4,096 bytes were corrupted. superradcompany/microsandbox#1230: so was what is not
    ASCII. The kernel does the first to programs that leave lines to it, as docs/terminals.md says."""
    viewer = attach(terminal("bash", "--norc", "--noprofile", env={"LC_ALL": "C.UTF-8"}, cols=200))
    viewer.until(rb"\$ ")
    viewer.type(f"x={'é' * 6000}; echo length ${{#x}} ${{x:5999}}\n")
    viewer.until("length 6000 é\r\n")
    cooked = attach(terminal("sh", "-c", "stty -echo; echo ready; read -r x; echo length ${#x}"))
    cooked.until("ready")
    cooked.type(b"y" * 6000 + b"\n")
    cooked.until("length 4095\r\n")


def test_resize_by_the_api_tells_the_program_and_the_viewers(guest: Guest, terminal: Make, attach: Attach) -> None:
    made = terminal("sh", "-c", "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done")
    viewer = attach(made)
    viewer.until("ready")
    answer = guest.call("POST", f"/v1/terminals/{made['id']}/resize", {"cols": 77, "rows": 33})
    assert (answer["cols"], answer["rows"]) == (77, 33)
    viewer.until("33 77")
    assert Resized(77, 33) in viewer.events


def test_background_programs_do_not_keep_an_ended_terminal_open(guest: Guest, terminal: Make) -> None:
    made = terminal("sh", "-c", "sleep 50 & echo done")
    wait_for(lambda: guest.call("GET", f"/v1/terminals/{made['id']}")["state"] == "exited", "the exit")


def test_delete_ends_everything_the_program_started(guest: Guest, terminal: Make, attach: Attach) -> None:
    made = terminal("sh", "-c", "trap '' HUP TERM; setsid sleep 1000 & echo pid $!.; wait; sleep 1000")
    viewer = attach(made)
    pid = int(viewer.until(rb"pid (\d+)\.").split(b"pid ")[1].split(b".")[0])
    answer = guest.call("DELETE", f"/v1/terminals/{made['id']}")
    assert answer["exit"] == {"code": None, "signal": 9}
    assert viewer.until_closed() == 4004
    assert not is_running(pid)
    error = guest.call("GET", f"/v1/terminals/{made['id']}", status=410)
    assert error["code"] == "gone"


def test_the_recording_is_an_asciicast(guest: Guest, terminal: Make) -> None:
    made = terminal("sh", "-c", "printf '\\342\\202'; sleep 0.1; printf '\\254 euro'", cols=90)
    wait_for(lambda: guest.call("GET", f"/v1/terminals/{made['id']}")["state"] == "exited", "the exit")
    lines = guest.http.get(f"/v1/terminals/{made['id']}/recording").text.splitlines()
    header = json.loads(lines[0])
    assert (header["version"], header["width"]) == (2, 90)
    events = [json.loads(line) for line in lines[1:]]
    assert "".join(text for _, kind, text in events if kind == "o") == "€ euro"
    unrecorded = terminal("true", record=False)
    guest.call("GET", f"/v1/terminals/{unrecorded['id']}/recording", status=404)


def test_a_recording_is_downloaded_whole_though_its_terminal_is_deleted(tmp_path: Path) -> None:
    """The number of its file may be another file's by then."""
    (tmp_path / "other").write_bytes(bytes(1000))
    recording = Recording(str(tmp_path), Dimensions(80, 24), 0.0)
    for word in ("one", "two"):
        recording.add(0.5, OUTPUT, word.encode())
    lines = recording.asciicast("")
    assert json.loads(next(lines))["width"] == 80
    recording.close()
    with (tmp_path / "other").open("rb"):
        assert [json.loads(line) for line in lines] == [[0.5, "o", "one"], [0.5, "o", "two"]]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"argv": ["/no/such/program"]}, "argv"),
        ({"argv": ["sh"], "cwd": "/no/such/place"}, "cwd"),
        ({"argv": []}, "argv"),
        ({"shell": ""}, "shell"),
        ({"argv": ["sh"], "shell": "true"}, ""),
        ({"cols": 1}, "cols"),
        ({"rows": 1001}, "rows"),
    ],
)
def test_mistakes_are_typed_and_leave_nothing(guest: Guest, body: dict[str, Any], field: str) -> None:
    before = guest.health()["open_files"]
    error = guest.call("POST", "/v1/terminals", body, status=400)
    assert error["details"]["errors"][0]["field"].startswith(field)
    wait_for(lambda: guest.health()["open_files"] <= before, "the open files of before")  # earlier ones may be let go


def test_a_line_of_shell_runs_as_in_a_process(terminal: Make, attach: Attach) -> None:
    made = terminal(shell="echo $((6 * 7)); sleep 60 | cat")
    assert made["argv"][1:] == ["-c", "echo $((6 * 7)); sleep 60 | cat"]
    attach(made).until(r"42")


def test_no_terminal_no_upgrade(attach: Attach) -> None:
    with pytest.raises(InvalidStatus, match="404"):
        attach({"id": "term-000000000000"})


@pytest.mark.parametrize("message", [b"", b"\x09" + bytes(8), "{", '{"type": "ack", "off": 0}', '{"type": "boo"}'])
def test_nonsense_ends_the_connection(terminal: Make, attach: Attach, message: str | bytes) -> None:
    viewer = attach(terminal("cat"))
    assert viewer.socket is not None
    viewer.socket.send(message if message != '{"type": "ack", "off": 0}' else '{"type": "ack", "off": 5}')
    assert viewer.until_closed() == 1008


def test_output_while_nobody_looks_is_there_later(guest: Guest, terminal: Make, attach: Attach) -> None:
    made = terminal("sh", "-c", "echo early; sleep 0.2; echo late; cat")
    wait_for(lambda: guest.call("GET", f"/v1/terminals/{made['id']}")["head_offset"] >= 13, "the output")
    assert attach(made).until("late") == b"early\r\nlate\r\n"


def test_terminals_are_listed_newest_first(guest: Guest, terminal: Make) -> None:
    made = [terminal("cat", name=name)["id"] for name in ("one", "two")]
    listed = [item["id"] for item in guest.call("GET", "/v1/terminals")["items"]]
    assert listed[:2] == made[::-1]
