"""Waiting for processes of a real guest: ends, ports, output."""

from __future__ import annotations

import contextlib
import random
import socket
import sys
import time

import httpx
import pytest
from guest_process import Guest, Json, wait_for
from processes_of import Processes, log, port

PYTHON = sys.executable

BRIEF = httpx.Timeout(30, read=0.3)
"""Of a client that has sent its request and waits no longer."""


@pytest.fixture(scope="module")
def processes(guest: Guest) -> Processes:
    return Processes(guest)


def free_port() -> int:
    """Below the ports that connections take for their own end, or one of them may have it when the server binds it. Not from
    the generator that begins anew with each test: it gave all of them the same port."""
    while True:
        number = random.SystemRandom().randrange(10_000, 30_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", number))
            return number


def server_code(number: int, status: int = 200, delay_s: float = 0.0, until_ready: int = 0) -> str:
    """An HTTP server that answers with `status`, the first `until_ready` times with 500."""
    return f"""
import http.server, time
time.sleep({delay_s})
class H(http.server.BaseHTTPRequestHandler):
    left = {until_ready}
    def do_GET(self):
        good = self.headers.get("X-Token", "ok") == "ok" and self.path in ("/", "/health")
        status = {status} if good else 403
        if H.left:
            H.left -= 1
            status = 500
        self.send_response(status); self.send_header("Content-Length", "0"); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", {number}), H).serve_forever()
"""


def says_at_last(processes: Processes, process_id: str, condition: Json, last: str) -> None:
    """What a wait that is over says of its last look: on a busy machine a short one may end before the first answer."""

    def said() -> bool:
        answer = processes.wait(process_id, condition, timeout_s=0.5, status=202)
        return bool(answer["results"] == [{"met": False, "match": None, "last": last}])

    wait_for(said, last)


def test_a_port_is_waited_for(processes: Processes) -> None:
    number = free_port()
    process_id = processes.start(PYTHON, "-c", server_code(number, delay_s=0.3))
    result = processes.wait(process_id, port(number))
    assert result["met"]
    assert result["process"]["state"] == "running"
    processes.delete(process_id)


def test_a_port_is_not_ready_while_the_app_answers_500(processes: Processes) -> None:
    """cloudflare/sandbox-sdk#419: a port was "ready" though the app answered 500."""
    number = free_port()
    process_id = processes.start(PYTHON, "-c", server_code(number, until_ready=3))
    assert processes.wait(process_id, port(number, protocol="http", interval_s=0.05))["met"]
    says_at_last(processes, process_id, port(number, protocol="http", path="/nope"), "HTTP status 403")
    assert processes.wait(process_id, port(number, protocol="http", status_from=400, path="/nope", status_to=403))[
        "met"
    ]
    secret = port(number, protocol="http", headers={"x-token": "bad"})
    assert not processes.wait(process_id, secret, timeout_s=0.2, status=202)["met"]
    processes.delete(process_id)


def test_a_port_that_takes_connections_and_says_nothing_is_not_http(processes: Processes) -> None:
    number = free_port()
    code = f"import socket, time; s = socket.create_server(('127.0.0.1', {number})); print('up', flush=True); time.sleep(100)"
    process_id = processes.start(PYTHON, "-c", code)
    processes.wait(process_id, log("up"))
    silent = port(number, protocol="http", check_timeout_s=0.2)
    says_at_last(processes, process_id, silent, "no answer within 0.2 s")
    processes.delete(process_id)


def test_ipv6_loopback_counts(processes: Processes) -> None:
    number = free_port()
    code = f"import socket, time; s = socket.create_server(('::1', {number}), family=socket.AF_INET6); time.sleep(100)"
    process_id = processes.start(PYTHON, "-c", code)
    assert processes.wait(process_id, port(number))["met"]
    processes.delete(process_id)


def test_a_process_that_ends_first_fails_the_wait_at_once(guest: Guest, processes: Processes) -> None:
    """cloudflare/sandbox-sdk#250 and others: the wait went on until its time was over."""
    process_id = processes.start(shell="sleep 0.2; echo 'no such module' >&2; exit 3")
    began = time.monotonic()
    error = processes.wait(process_id, port(free_port()), timeout_s=60, status=409)
    assert time.monotonic() - began < 50
    assert error["code"] == "process_ended"
    assert error["details"]["exit"]["code"] == 3
    assert error["details"]["unmet"] == [0]
    assert error["details"]["stderr"] == "no such module\n"
    assert "exited with code 3 before port" in error["message"]


def test_a_log_that_comes_just_before_the_end_counts(processes: Processes) -> None:
    for _ in range(20):
        process_id = processes.start(shell="echo ready")
        assert processes.wait(process_id, log("ready"))["met"]
    error = processes.wait(process_id, log("never"), status=409)
    assert "before its output had 'never'" in error["message"]


def test_a_fast_writer_leaves_no_hole_between_replay_and_live(processes: Processes) -> None:
    """#447: a listener that was added after the replay missed lines."""
    for _ in range(5):
        process_id = processes.start(shell="seq 1 20000; echo done; sleep 100")
        assert processes.wait(process_id, log("\n20000\ndone\n"))["met"]
        processes.delete(process_id)


def test_a_text_in_pieces_is_found(processes: Processes) -> None:
    """#459: a match split over chunks."""
    code = (
        "import sys, time\nfor c in 'server réady':\n    sys.stdout.buffer.write(c.encode()[:1]); sys.stdout.flush()\n"
    )
    code += "    time.sleep(0.01); sys.stdout.buffer.write(c.encode()[1:]); sys.stdout.flush()\ntime.sleep(100)"
    process_id = processes.start(PYTHON, "-c", code)
    match = processes.wait(process_id, log("server réady"))["results"][0]["match"]
    assert (match["stream"], match["line"]) == ("stdout", "server réady")
    processes.delete(process_id)


def test_a_match_tells_groups_and_where_to_go_on(processes: Processes) -> None:
    process_id = processes.start(shell="echo a; echo 'listening on 0.0.0.0:4321'; sleep 0.1; echo after; sleep 100")
    match = processes.wait(process_id, log(r"on (\S+):(\d+)", regex=True))["results"][0]["match"]
    assert match["groups"] == ["0.0.0.0", "4321"]
    assert match["line"] == "listening on 0.0.0.0:4321"
    again = processes.wait(process_id, log("after", cursor=match["cursor"]))
    assert again["met"]
    assert not processes.wait(process_id, log("listening", cursor=match["cursor"]), timeout_s=0.1, status=202)["met"]
    processes.delete(process_id)


def test_only_what_comes_from_now_on(processes: Processes) -> None:
    process_id = processes.start(shell="echo tick; read x; echo tick; sleep 100", stdin="open")
    processes.wait(process_id, log("tick"))
    now = processes.get(process_id)["cursor"]
    assert not processes.wait(process_id, log("tick", cursor=now), timeout_s=0.2, status=202)["met"]
    processes.write(process_id, b"\n")
    assert processes.wait(process_id, log("tick", cursor=now))["met"]
    processes.delete(process_id)


def test_several_conditions_all_and_any(processes: Processes) -> None:
    """cloudflare/sandbox-sdk#270, #297: there was no way to wait for an event, or for the end."""
    process_id = processes.start(shell="echo one; sleep 0.2; echo two; sleep 0.2; exit 0")
    first = processes.wait(process_id, log("one"), log("never"), mode="any")
    assert [result["met"] for result in first["results"]] == [True, False]
    both = processes.wait(process_id, log("one"), log("two"), {"type": "exit"})
    assert both["process"]["state"] == "finished"
    assert processes.wait(process_id, log("never"), {"type": "exit"}, mode="any")["met"]
    assert processes.wait(process_id, log("never"), {"type": "exit"}, status=409)["details"]["unmet"] == [0]


def test_a_wait_that_is_over_or_left_kills_nothing(guest: Guest, processes: Processes) -> None:
    process_id = processes.start("sleep", "100")
    assert not processes.wait(process_id, timeout_s=0.1, status=202)["met"]
    with pytest.raises(httpx.ReadTimeout):
        guest.http.post(
            f"/v1/processes/{process_id}/wait", json={"conditions": [{"type": "exit"}], "timeout_s": 60}, timeout=BRIEF
        )
    assert processes.get(process_id)["state"] == "running"
    processes.delete(process_id)


def test_a_kill_ends_waits_for_the_end(processes: Processes) -> None:
    process_id = processes.start("sleep", "100")
    processes.signal(process_id, "KILL")
    assert processes.wait(process_id)["process"]["exit"]["signal"] == "SIGKILL"


def test_an_expression_that_takes_for_ever_does_not_stop_the_guest(guest: Guest, processes: Processes) -> None:
    process_id = processes.start(shell=f"{PYTHON} -c \"print('a' * 60 + '!')\"; sleep 100")
    processes.wait(process_id, log("!"))
    began = time.monotonic()
    error = processes.wait(process_id, log("(a+)+$", regex=True), status=400)
    assert "takes too long" in error["message"]
    assert time.monotonic() - began < 50
    guest.health()
    processes.delete(process_id)


@pytest.mark.parametrize(
    "condition",
    [
        {"type": "log", "pattern": "(", "regex": True},
        {"type": "log", "pattern": ""},
        {"type": "log", "pattern": "x", "stream": "stdin"},
        {"type": "port", "port": 0},
        {"type": "port", "port": 1, "status_from": 300, "status_to": 200},
        {"type": "port", "port": 1, "path": "no-slash"},
        {"type": "port", "port": 1, "headers": {"a": "b\r\nX: y"}},
        {"type": "nothing"},
    ],
)
def test_bad_conditions_are_refused(processes: Processes, condition: dict[str, object]) -> None:
    process_id = processes.start("true")
    assert processes.wait(process_id, condition, status=400)["code"] == "invalid_request"


def test_a_bad_cursor_is_typed(processes: Processes) -> None:
    process_id = processes.start("true")
    assert processes.wait(process_id, log("x", cursor="nope"), status=400)["code"] == "malformed_cursor"
