"""Processes and exec in a real guest. Comments name the public reports of systems that did it wrong."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from guest_process import Guest, Json, is_running, wait_for
from processes_of import Processes, log, to_bytes
from websockets.sync.client import connect

PYTHON = sys.executable


@pytest.fixture(scope="module")
def processes(guest: Guest) -> Processes:
    return Processes(guest)


def stdout_of(processes: Processes, process_id: str) -> bytes:
    events = processes.output(process_id)["events"]
    return b"".join(to_bytes(event["data"]) for event in events if event["type"] == "stdout")


# Starting


@pytest.mark.parametrize(
    ("body", "reason", "field"),
    [
        ({"argv": ["no-such-program"]}, "not_found", "argv"),
        ({"argv": ["/etc/passwd"]}, "not_executable", "argv"),
        ({"argv": ["/etc"]}, "not_executable", "argv"),
        ({"argv": ["true"], "cwd": "/no/such/place"}, "bad_cwd", "cwd"),
        ({"argv": ["true"], "cwd": "/etc/passwd"}, "bad_cwd", "cwd"),
        ({"argv": ["true", *["x" * 131_071] * 20]}, "too_large", "argv"),
        ({"argv": ["true"], "user": "root"}, "not_allowed", "user"),
    ],
)
def test_a_start_that_fails_says_why_and_leaves_nothing(
    guest: Guest, processes: Processes, body: dict[str, object], reason: str, field: str
) -> None:
    """cloudflare/sandbox-sdk#725, #737, #250: a failed start stayed listed as running, or was not reported at all."""
    before = process_ids(guest)
    for path in ("/v1/processes", "/v1/exec"):
        error = guest.call("POST", path, body, status=422)
        assert error["code"] == "process_start_failed"
        assert (error["details"]["reason"], error["details"]["field"]) == (reason, field)
    assert process_ids(guest) <= before  # others may end meanwhile, and be forgotten


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_line_and_a_variable_may_be_as_long_as_linux_lets_them(guest: Guest, letter: str) -> None:
    width = len(letter.encode())
    line = ": " + letter * ((131_071 - 2) // width)
    value = letter * (130_814 // width)
    told = guest.call("POST", "/v1/exec", {"shell": line, "env": {"N" * 256: value}})
    assert told["process"]["exit"]["code"] == 0
    for more in ({"shell": line + letter}, {"shell": "true", "env": {"N": value + letter}}):
        error = guest.call("POST", "/v1/exec", more, status=400)
        assert error["code"] == "invalid_request"


def process_ids(guest: Guest) -> set[str]:
    return {process["id"] for process in guest.call("GET", "/v1/processes")["items"]}


def test_a_script_without_its_interpreter_says_so(guest: Guest) -> None:
    script = guest.home / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    error = guest.call("POST", "/v1/processes", {"argv": [str(script)]}, status=422)
    assert error["details"]["reason"] == "bad_interpreter"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"argv": []},
        {"argv": [""]},
        {"argv": ["true"], "shell": "true"},
        {"argv": ["a\0b"]},
        {"argv": ["true"], "cwd": "relative"},
        {"argv": ["true"], "env": {"A=B": ""}},
        {"argv": ["true"], "timeout_s": 0},
        {"argv": ["true"], "tty": {"cols": 0}},
        {"argv": ["true"], "unknown": 1},
    ],
)
def test_bad_input_is_refused(guest: Guest, body: dict[str, object]) -> None:
    assert guest.call("POST", "/v1/processes", body, status=400)["code"] == "invalid_request"


def test_a_start_can_be_repeated(guest: Guest, processes: Processes) -> None:
    body = {"id": "proc-abcabcabcabc", "shell": "echo $$ >> starts; sleep 60"}
    first = guest.call("POST", "/v1/processes", body, status=201)
    second = guest.call("POST", "/v1/processes", body, status=201)
    assert first["pid"] == second["pid"]
    assert guest.call("POST", "/v1/processes", {**body, "timeout_s": 5}, status=409)["code"] == "conflict"
    assert guest.call("POST", "/v1/exec", body, status=409)["code"] == "conflict"
    processes.delete(first["id"])
    assert guest.call("POST", "/v1/processes", body, status=410)["code"] == "gone"


def test_many_at_the_same_moment_each_get_their_own(processes: Processes) -> None:
    """#333, #120, #613: concurrent first use failed with "already exists"; #290: concurrent execs mixed their output."""
    with ThreadPoolExecutor(16) as pool:
        outs = list(pool.map(lambda n: processes.out(f"for i in 1 2 3; do echo {n}; done"), range(48)))
    assert outs == [f"{n}\n" * 3 for n in range(48)]


# The environment


def test_the_env_of_the_call_wins(processes: Processes) -> None:
    """#144: the env of one exec was ignored."""
    out = processes.out('echo "$HOME|$GREETING|$CLOCHE_PROCESS_ID"', env={"HOME": "/other", "GREETING": "a b"})
    home, greeting, process_id = out.strip().split("|")
    assert (home, greeting) == ("/other", "a b")
    assert processes.get(process_id)["env"] == ["GREETING", "HOME"]


def test_the_cwd_is_the_workspace_or_what_was_asked_for(guest: Guest, processes: Processes) -> None:
    assert processes.out("pwd") == f"{guest.home}\n"
    assert processes.out("pwd", cwd="/usr") == "/usr\n"


# Exec


def test_exec_gives_output_and_exit_code(processes: Processes) -> None:
    """#320: exec never returned, even for echo; vndee/llm-sandbox#61: output cut and exit codes lost."""
    result = processes.shell("echo out; echo err >&2; exit 7")
    assert to_bytes(result["stdout"]["data"]) == b"out\n"
    assert to_bytes(result["stderr"]["data"]) == b"err\n"
    assert result["process"]["exit"] == {"code": 7, "signal": None, "timed_out": False, "out_of_memory": False}
    assert result["process"]["state"] == "finished"


def test_every_exit_code_and_signal_is_told_as_it_was(processes: Processes) -> None:
    codes = (0, 1, 2, 42, 126, 127, 128, 137, 143, 255)
    assert [processes.shell(f"exit {code}")["process"]["exit"]["code"] for code in codes] == list(codes)
    killed = processes.shell("kill -USR1 $$")["process"]["exit"]
    assert (killed["code"], killed["signal"]) == (None, "SIGUSR1")


def test_exit_in_a_shell_line_harms_nothing(processes: Processes) -> None:
    """#632, #633: `exit` and `set -e` made the session unusable for all later calls."""
    assert processes.shell("set -e; false; echo never")["process"]["exit"]["code"] == 1
    assert processes.shell("exit 3")["process"]["exit"]["code"] == 3
    assert processes.out("echo fine") == "fine\n"


@pytest.mark.parametrize(
    ("line", "expected", "code"),
    [
        ("cat <<EOF\none\ntwo\nEOF", b"one\ntwo\n", 0),
        ("cat <<'A' - <<'B'\nlost\nA\nkept\nB", b"kept\n", 0),
        ("cat <<EOF\nno end", b"no end\n", 0),
        ("echo 'unbalanced", b"", 2),
        ("echo \"a $(echo 'b)')\"", b"a b)\n", 0),
        ("printf 'a\\0b'", b"a\0b", 0),
    ],
)
def test_heredocs_and_quotes(processes: Processes, line: str, expected: bytes, code: int) -> None:
    """#602, #139, #446, daytonaio/daytona#4230: a heredoc or an open quote made the command, or all later ones, hang."""
    result = processes.shell(line)
    assert to_bytes(result["stdout"]["data"]) == expected
    assert result["process"]["exit"]["code"] == code
    assert processes.out("echo next") == "next\n"


@pytest.mark.parametrize(
    "line", ["cat", "read x; echo $?", f"{PYTHON} -c 'import sys; sys.stdin.read()'", "cat </dev/stdin"]
)
def test_stdin_is_at_its_end(processes: Processes, line: str) -> None:
    """#141, daytonaio/daytona#3770: stdin was left open, so commands that read it waited for ever."""
    began = time.monotonic()
    processes.shell(line)
    assert time.monotonic() - began < 50


def test_a_background_child_does_not_block_an_exec(processes: Processes) -> None:
    """#166: a foreground call blocked on a background child that held its output."""
    began = time.monotonic()
    result = processes.shell("sleep 1000 & echo started")
    assert time.monotonic() - began < 50
    assert to_bytes(result["stdout"]["data"]) == b"started\n"
    process = result["process"]
    assert (process["state"], process["exit"]["code"]) == ("lingering", 0)
    processes.delete(process["id"])


def test_an_exec_that_takes_long_is_waited_for_with_the_same_body(guest: Guest) -> None:
    """LibreChat-AI/agents#251: no bound on the client's side, a hang of 589 s."""
    shell = "echo one; until [ -e go ]; do sleep 0.02; done; echo two; echo again >> count"
    body = {"id": "proc-longlonglong", "shell": shell}
    first: Json = {}

    def said_one() -> bool:
        first.update(guest.call("POST", "/v1/exec?wait_s=0.1", body, status=202))
        return to_bytes(first["stdout"]["data"]) == b"one\n"

    wait_for(said_one, "the first line")
    assert first["process"]["exit"] is None
    (guest.home / "go").touch()
    second = guest.call("POST", "/v1/exec?wait_s=30", body, status=200)
    assert to_bytes(second["stdout"]["data"]) == b"one\ntwo\n"
    assert (guest.home / "count").read_text() == "again\n"


def test_output_over_the_cap_keeps_its_head_and_its_tail_and_says_so(processes: Processes) -> None:
    """#255, #370: a fixed cap that cut silently; MapleTech#819 asks for the option."""
    result = processes.shell("seq 1 200000", max_output_bytes=1000)
    stdout = result["stdout"]
    text = "".join(f"{n}\n" for n in range(1, 200_001))
    assert result["truncated"]
    assert stdout["total_bytes"] == len(text)
    head, tail = to_bytes(stdout["data"]).decode(), to_bytes(stdout["tail"]).decode()
    assert len(head) == len(tail) == 500
    assert text.startswith(head)
    assert text.endswith(tail)
    assert stdout["omitted_bytes"] == len(text) - 1000


def test_a_flood_is_counted_in_full(processes: Processes) -> None:
    result = processes.exec("head", "-c", "100000000", "/dev/zero")
    assert result["stdout"]["total_bytes"] == 100_000_000
    kept = len(to_bytes(result["stdout"]["data"])) + len(to_bytes(result["stdout"]["tail"]))
    assert result["stdout"]["omitted_bytes"] == 100_000_000 - kept
    assert kept == 1024 * 1024


def test_bytes_that_are_no_text_come_back_exactly(processes: Processes) -> None:
    """The reference drops NUL and strips the last newline."""
    data = bytes(range(256)) * 100 + b"\n\n"
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 100 + b'\\n\\n')"
    assert to_bytes(processes.exec(PYTHON, "-c", code)["stdout"]["data"]) == data


def test_input_is_read_to_its_end(processes: Processes) -> None:
    """#357, #362: no way to give a command input."""
    result = processes.exec("wc", "-c", input={"text": "é" * 1_500_000})
    assert to_bytes(result["stdout"]["data"]) == b"3000000\n"
    unread = processes.exec("true", input={"text": "x" * 3_000_000})
    assert unread["process"]["exit"]["code"] == 0


# Time


TIMEOUT_S = 4.0
"""What a program does first must be done by then. All that run out of it do so together: see `timed`."""


@pytest.fixture(scope="module")
def timed(processes: Processes) -> Iterator[dict[str, Json]]:
    """Processes whose time is over; each has its ``output``, too."""
    lines = {
        "sleeps": "echo before; sleep 1000",
        "ignores TERM": "trap '' TERM; sleep 1000 & wait; wait",
        "obeys TERM": "trap 'exit 5' TERM; while :; do sleep 0.01; done",
        "left something": "sleep 1000 & echo $!",
    }
    ids = {what: processes.start(shell=line, timeout_s=TIMEOUT_S, grace_s=0.3) for what, line in lines.items()}
    for what in ("sleeps", "ignores TERM", "obeys TERM"):
        processes.finish(ids[what])
    processes.wait(ids["left something"], timeout_s=0.5, status=202)  # it was started at the same time as the others
    yield {what: processes.get(ids[what]) | {"output": stdout_of(processes, ids[what])} for what in ids}
    processes.delete(ids["left something"])


def test_a_command_that_is_out_of_time_is_ended_and_the_next_one_runs(
    processes: Processes, timed: dict[str, Json]
) -> None:
    """#438, #450: a stuck command ignored its timeout and blocked all later ones; opensandbox#217: there was none."""
    process = timed["sleeps"]
    assert process["exit"] == {"code": None, "signal": "SIGTERM", "timed_out": True, "out_of_memory": False}
    assert process["duration_s"] >= TIMEOUT_S
    assert process["output"] == b"before\n"
    result = processes.shell("sleep 1000", timeout_s=0.1)  # an exec is out of time in the same way
    assert result["process"]["exit"]["timed_out"]
    assert processes.out("echo next") == "next\n"


def test_a_program_that_ignores_term_is_killed_after_the_grace(timed: dict[str, Json]) -> None:
    exited = timed["ignores TERM"]["exit"]
    assert (exited["signal"], exited["timed_out"]) == ("SIGKILL", True)


def test_a_program_that_ends_by_itself_at_term_keeps_its_exit_code(timed: dict[str, Json]) -> None:
    exited = timed["obeys TERM"]["exit"]
    assert exited == {"code": 5, "signal": None, "timed_out": True, "out_of_memory": False}


def test_what_a_command_left_in_the_background_outlives_the_timeout(timed: dict[str, Json]) -> None:
    process = timed["left something"]
    assert (process["state"], process["exit"]["code"], process["exit"]["timed_out"]) == ("lingering", 0, False)
    assert is_running(int(process["output"]))


# Ends


def test_a_kill_ends_the_whole_tree(processes: Processes) -> None:
    """#338, #487, #339, #388, opensandbox#922: only the shell died; pipelines, background children and daemons went on."""
    line = (
        "sleep 1001 | sleep 1002 & (sleep 1003; true) & setsid sleep 1004 & setsid sh -c 'sleep 1005 & sleep 1006' &"
        " echo up; sleep 1007"
    )
    process_id = processes.start(shell=line)
    processes.wait(process_id, log("up"))
    wait_for(lambda: len(sleepers(process_id)) == 7, "seven sleepers")
    process = processes.delete(process_id)
    assert process["exit"]["signal"] == "SIGKILL"
    wait_for(lambda: not sleepers(process_id), "their end")


def sleepers(process_id: str) -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = f"CLOCHE_PROCESS_ID={process_id}".encode() in (path / "environ").read_bytes()
            sleeps = (path / "cmdline").read_bytes().startswith(b"sleep\0")
        except OSError:
            continue
        if is_ours and sleeps and is_running(int(path.name)):
            found.add(int(path.name))
    return found


def test_a_signal_reaches_children_and_who_has_left_the_group(processes: Processes) -> None:
    line = (
        "trap 'echo root' USR1; setsid sh -c \"trap 'echo left' USR1; echo b; while :; do sleep 0.02; done\" & echo a;"
    )
    process_id = processes.start(shell=line + "while :; do sleep 0.02; done")
    processes.wait(process_id, log("a\n"), log("b\n"))
    processes.signal(process_id, "USR1")
    processes.wait(process_id, log("root"), log("left"))
    processes.delete(process_id)


@pytest.mark.parametrize("name", ["TERM", "SIGTERM", 15])
def test_signals_have_names_and_numbers(processes: Processes, name: str | int) -> None:
    process_id = processes.start("sleep", "100")
    processes.signal(process_id, name)
    assert processes.finish(process_id)["exit"]["signal"] == "SIGTERM"


def test_an_unknown_signal_is_refused(guest: Guest, processes: Processes) -> None:
    process_id = processes.start("sleep", "100")
    for name in ("NOPE", "SIGRTMIN+99", 0, 65, "term"):
        guest.call("POST", f"/v1/processes/{process_id}/signal", {"signal": name}, status=400)
    processes.signal(process_id, "SIGRTMIN+1")
    assert processes.finish(process_id)["exit"]["signal"] in ("SIGRTMIN+1", "SIG35")


def test_a_signal_with_a_deadline_ends_in_kill(processes: Processes) -> None:
    process_id = processes.start(shell="trap '' TERM; echo up; while :; do sleep 0.05; done")
    processes.wait(process_id, log("up"))
    processes.signal(process_id, "TERM", kill_after_s=0.2)
    assert processes.finish(process_id)["exit"]["signal"] == "SIGKILL"


def test_it_is_not_finished_while_a_member_of_its_group_lives(processes: Processes) -> None:
    """#338: the record said completed while children lived; #873: the stream said exit 0 while the process ran."""
    process_id = processes.start(shell="(until [ -e late ]; do sleep 0.02; done; echo late) & echo first; exit 4")
    kinds = []
    for event in processes.events(process_id):
        kinds.append(event["type"])
        if event["type"] == "lingering":
            (processes.guest.home / "late").touch()
    assert kinds == ["started", "stdout", "exited", "lingering", "stdout", "finished"]
    process = processes.get(process_id)
    assert (process["state"], process["exit"]["code"]) == ("finished", 4)
    assert process["stdout_bytes"] == len("first\nlate\n")


def test_a_daemon_that_keeps_the_output_holds_it_only_so_long(processes: Processes) -> None:
    """The reference's next version stays "running" for ever here. The daemon is neither killed nor blocked."""
    late = "until [ -e let-go ]; do sleep 0.02; done; echo lost; echo alive > daemon-says; exec sleep 1000"
    line = f"setsid sh -c '{late}' & echo $!"
    process_id = processes.start(shell=line, env={"X": "1"})
    pid = int(processes.wait(process_id, log(r"\d+\n", regex=True))["results"][0]["match"]["text"])
    process = processes.finish(process_id)
    assert process["output_held"]
    assert process["stdout_bytes"] == len(f"{pid}\n")
    (processes.guest.home / "let-go").touch()
    says = Path(processes.get(process_id)["cwd"]) / "daemon-says"
    wait_for(says.exists, "the daemon to go on")
    assert is_running(pid)
    os.kill(pid, signal.SIGKILL)


def test_output_comes_before_the_end(processes: Processes) -> None:
    """#827: the stream was cut short; #447: a listener that came late missed lines."""
    for _ in range(20):
        process_id = processes.start("head", "-c", "300000", "/dev/zero")
        events = list(processes.events(process_id))
        assert sum(len(to_bytes(event["data"])) for event in events if event["type"] == "stdout") == 300_000
        assert [event["type"] for event in events[-2:]] == ["exited", "finished"]


def test_a_context_that_ends_leaves_processes_alone(guest: Guest, processes: Processes) -> None:
    """#891: the end of a session killed every process tree while the container lived on."""
    process_id = processes.start("sleep", "100")
    made = guest.create()
    made.ok("1")
    made.delete()
    assert processes.get(process_id)["state"] == "running"
    processes.delete(process_id)


# Reading


def test_pages_go_on_where_the_last_one_ended(processes: Processes) -> None:
    """TanStack/ai#1085: without a cursor pollers downloaded the whole log every time."""
    process_id = processes.start(shell="for i in $(seq 1 50); do echo $i; echo e$i >&2; done; sleep 0.2; echo end")
    seen: list[dict[str, object]] = []
    cursor: dict[str, str] = {}
    while True:
        page = processes.output(process_id, limit_bytes=20, wait_s=5, **cursor)
        seen += page["events"]
        cursor = {"cursor": page["cursor"]}
        if page["at_end"]:
            break
    text = b"".join(to_bytes(event["data"]) for event in seen if event["type"] == "stdout").decode()  # type: ignore[arg-type]
    assert text.split() == [*(str(n) for n in range(1, 51)), "end"]
    assert seen[-1]["type"] == "finished"
    again = processes.output(process_id, **cursor)
    assert (again["events"], again["at_end"]) == ([], True)


def test_one_stream_can_be_asked_for(processes: Processes) -> None:
    process_id = processes.start(shell="echo a; echo b >&2; echo c")
    processes.finish(process_id)
    assert {event["type"] for event in processes.events(process_id, stream="stderr")} == {
        *("started", "stderr", "exited", "finished")
    }
    assert {event["type"] for event in processes.output(process_id, stream="stdout")["events"]} == {
        *("started", "stdout", "exited", "finished")
    }


def test_events_come_over_a_websocket_too(guest: Guest, processes: Processes) -> None:
    import json

    process_id = processes.start(shell="echo hi")
    with connect(f"ws://127.0.0.1:{guest.port}/v1/processes/{process_id}/events", proxy=None) as socket:
        events = [json.loads(message) for message in socket]
    assert [event["type"] for event in events] == ["started", "stdout", "exited", "finished"]
    assert events[1]["data"] == {"text": "hi\n"}


def test_the_order_of_both_streams_is_kept(processes: Processes) -> None:
    """The reference replayed all stdout, then all stderr."""
    line = "for i in 1 2 3 4 5; do echo $i; read go; echo e$i >&2; read go; done"
    process_id = processes.start(shell=line, stdin="open")
    events = []
    for event in processes.events(process_id):
        if event["type"].startswith("std"):
            events.append(event)
            processes.write(process_id, b"\n" * to_bytes(event["data"]).count(b"\n"))
    assert b"".join(to_bytes(event["data"]) for event in events) == b"".join(b"%d\ne%d\n" % (n, n) for n in range(1, 6))


def test_bad_cursors_are_typed(guest: Guest, processes: Processes) -> None:
    one, two = processes.start("true"), processes.start("true")
    processes.finish(one)
    head = processes.finish(two)["cursor"]
    for path in (f"/v1/processes/{one}/events", f"/v1/processes/{one}/output"):
        assert guest.call("GET", f"{path}?cursor=x", status=400)["code"] == "malformed_cursor"
        assert guest.call("GET", f"{path}?cursor={head}", status=409)["code"] == "foreign_cursor"


def test_a_reader_that_goes_away_changes_nothing(guest: Guest, processes: Processes) -> None:
    """cloudflare/workers-sdk#13442, #576: "controller already closed" after a client had disconnected."""
    process_id = processes.start(shell="for i in $(seq 1 100); do echo $i; sleep 0.005; done")
    for _ in range(10):
        events = processes.events(process_id)
        next(events)
        events.close()  # type: ignore[attr-defined]
    assert processes.finish(process_id)["exit"]["code"] == 0
    assert stdout_of(processes, process_id).split()[-1] == b"100"


# Stdin


def test_input_is_written_and_closed(processes: Processes) -> None:
    """#357: write, then close."""
    process_id = processes.start(shell="cat; echo done", stdin="open")
    assert processes.write(process_id, b"one\n") == {"offset": 4, "open": True}
    processes.wait(process_id, log("one"))
    assert processes.write(process_id, b"two\n", "?close=1") == {"offset": 8, "open": False}
    processes.finish(process_id)
    assert stdout_of(processes, process_id) == b"one\ntwo\ndone\n"


def test_input_that_is_sent_twice_is_taken_once(guest: Guest, processes: Processes) -> None:
    process_id = processes.start("cat", stdin="open")
    processes.write(process_id, b"hello ", "?offset=0")
    processes.write(process_id, b"hello ", "?offset=0")
    processes.write(process_id, b"lo world", "?offset=3&close=1")
    assert processes.write(process_id, b"lo world", "?offset=3&close=1") == {"offset": 11, "open": False}
    hole = guest.http.post(f"/v1/processes/{process_id}/stdin?offset=99", content=b"x")
    assert (hole.status_code, hole.json()["code"]) == (409, "conflict")
    processes.finish(process_id)
    assert stdout_of(processes, process_id) == b"hello world"


def test_input_nobody_reads_is_taken_in_part(processes: Processes) -> None:
    process_id = processes.start("sleep", "100", stdin="open")
    answer = processes.write(process_id, b"x" * 3_000_000, "?wait_s=0.1")
    assert 1_000_000 < answer["offset"] < 3_000_000
    assert answer["open"]
    processes.delete(process_id)


def test_no_input_for_who_has_no_stdin(guest: Guest, processes: Processes) -> None:
    closed = processes.start("sleep", "100")
    ended = processes.start("true", stdin="open")
    shut = processes.start(shell="exec <&-; echo shut; sleep 100", stdin="open")
    processes.finish(ended)
    processes.wait(shut, log("shut"))
    for process_id in (closed, ended, shut):
        response = guest.http.post(f"/v1/processes/{process_id}/stdin", content=b"x" * 2_000_000)
        assert (response.status_code, response.json()["code"]) == (409, "conflict"), process_id
    processes.delete(closed)
    processes.delete(shut)


# Terminals


def test_a_tty_is_one(processes: Processes) -> None:
    """daytonaio/daytona#4042: exec had no tty mode."""
    out = processes.out("tty <&1 >/dev/null && stty size <&1; echo $TERM; echo err >&2", tty={"cols": 101, "rows": 33})
    assert out == "33 101\r\nxterm-256color\r\nerr\r\n"


def test_a_tty_with_input_is_controlled_by_it(processes: Processes) -> None:
    process_id = processes.start(shell="echo up; cat", tty={}, stdin="open")
    processes.wait(process_id, log("up"))
    processes.write(process_id, b"typed\n")
    processes.wait(process_id, log("typed\r\ntyped\r\n"))
    processes.write(process_id, b"\x03")
    assert processes.finish(process_id)["exit"]["signal"] == "SIGINT"


SIZES = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
print("up", flush=True)
while signal.sigwait([signal.SIGWINCH]):
    print(*os.get_terminal_size(1), flush=True)
"""


@pytest.mark.parametrize("stdin", ["open", "eof"])
def test_a_tty_is_resized_and_its_program_told(guest: Guest, processes: Processes, stdin: str) -> None:
    process_id = processes.start(PYTHON, "-c", SIZES, tty={"cols": 70, "rows": 20}, stdin=stdin)
    processes.wait(process_id, log("up"))
    path = f"/v1/processes/{process_id}/resize"
    assert guest.call("POST", path, {"cols": 90, "rows": 31})["tty"] == {"cols": 90, "rows": 31}
    processes.wait(process_id, log("90 31\r\n"))
    assert processes.get(process_id)["tty"] == {"cols": 90, "rows": 31}
    for body in ({"cols": 90}, {"cols": 1, "rows": 1}, {"cols": 90, "rows": 1001}):
        assert guest.call("POST", path, body, status=400)["code"] == "invalid_request"
    processes.delete(process_id)


def test_only_a_running_process_with_a_tty_is_resized(guest: Guest, processes: Processes) -> None:
    plain = processes.start("sleep", "1000")
    answer = guest.call("POST", f"/v1/processes/{plain}/resize", {"cols": 90, "rows": 31}, status=409)
    assert (answer["code"], answer["details"]) == ("conflict", {"process_id": plain})
    processes.delete(plain)
    over = processes.start("true", tty={})
    processes.finish(over)
    assert guest.call("POST", f"/v1/processes/{over}/resize", {"cols": 90, "rows": 31})["tty"]["cols"] == 80


def test_a_program_that_closes_its_tty_before_it_ends_is_not_hung_up_on(processes: Processes) -> None:
    """`cat` does so, a moment before it exits."""
    line = "exec <&- >&- 2>&-; sleep 0.3; echo back >/dev/tty; exit 3"
    process_id = processes.start("sh", "-c", line, tty={}, stdin="open")
    assert (process := processes.finish(process_id))["exit"]["code"] == 3, process
    assert stdout_of(processes, process_id) == b"back\r\n"


def test_the_end_of_input_on_a_tty_is_ctrl_d(processes: Processes) -> None:
    process_id = processes.start("cat", tty={}, stdin="open")
    processes.write(process_id, b"a\n", "?close=1")
    assert (process := processes.finish(process_id))["exit"]["code"] == 0, process


# Bounds


def test_finished_processes_are_kept_within_bounds(guest: Guest, processes: Processes) -> None:
    first = processes.start("true")
    processes.finish(first)
    for _ in range(70):
        processes.exec("true")
    assert guest.call("GET", f"/v1/processes/{first}", status=410)["code"] == "gone"
    assert len(guest.call("GET", "/v1/processes")["items"]) < 100


def test_descriptors_and_memory_stay_flat(guest: Guest, processes: Processes) -> None:
    """#224: listeners and processes leaked; opensandbox#981: output was collected until memory ran out."""
    for _ in range(3):
        processes.exec("head", "-c", "20000000", "/dev/zero")
    before = guest.health()
    for _ in range(60):
        processes.exec("head", "-c", "2000000", "/dev/zero")
        processes.shell("echo x >&2; exit 1")
    # A leak would be 120 at least; a kernel that is made ahead meanwhile takes some.
    wait_for(lambda: guest.health()["open_files"] < before["open_files"] + 60, "descriptors to be closed")
    assert guest.health()["memory_bytes"] < before["memory_bytes"] + 150 * 1024 * 1024


def test_what_is_not_there_is_not_found(guest: Guest) -> None:
    for path in ("", "/events", "/output"):
        assert guest.call("GET", f"/v1/processes/proc-000000000000{path}", status=404)["details"]["kind"] == "process"
