"""SSE and WebSocket: resuming, gaps, slow and vanishing readers, input and interrupt over WebSocket."""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import pytest
from guest_process import Context, Guest, Json, parse_sse, text, wait_for
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection


def frames(connection: ClientConnection) -> list[Json]:
    """Every event until the guest closes."""
    with contextlib.suppress(ConnectionClosed):
        return [json.loads(message) for message in connection]
    return []


def test_a_run_answered_as_sse_ends_with_finished(shared: Context) -> None:
    headers = {"Accept": "text/event-stream"}
    body = {"code": "print('hi')\n1"}
    with shared.guest.http.stream("POST", f"{shared.path}/runs", json=body, headers=headers) as response:
        run_id = response.headers["Cloche-Run-Id"]
        assert response.headers["Content-Type"] == "text/event-stream"
        events = list(parse_sse(response.iter_lines()))
    assert list(dict.fromkeys(event["type"] for event in events)) == ["started", "stdout", "result", "finished"]
    assert events[-1]["data"]["status"] == "ok"
    assert shared.get(run_id)["cursor"] == events[-1]["cursor"]


def test_every_event_can_be_resumed_from(shared: Context) -> None:
    run = shared.ok("for i in range(5):\n  print(i, flush=True)\n'end'")
    events = list(shared.events(run["id"]))
    for at, event in enumerate(events):
        assert list(shared.events(run["id"], event["cursor"])) == events[at + 1 :]


def test_last_event_id_wins_over_the_query(shared: Context) -> None:
    run = shared.ok("print('a')\n1")
    events = list(shared.events(run["id"]))
    path = f"{shared.path}/runs/{run['id']}/events?cursor={events[0]['cursor']}"
    response = shared.guest.http.get(path, headers={"Last-Event-ID": events[-2]["cursor"]})
    assert list(parse_sse(iter(response.text.splitlines()))) == events[-1:]


def test_a_client_that_comes_back_while_the_code_runs_misses_nothing(shared: Context) -> None:
    """jupyterlab#6910, notebook#4105: output lost across a disconnect; buffers keyed by the client's session."""
    run_id = shared.submit("for i in range(3):\n  print(i, flush=True)\n  input()", allow_stdin=True)
    seen: list[Json] = []
    for number in range(3):
        with contextlib.closing(shared.events(run_id, seen[-1]["cursor"] if seen else None)) as events:  # type: ignore[type-var]
            for event in events:
                seen.append(event)
                if event["type"] == "input_request":
                    break
        assert seen[-1]["type"] == "input_request", number
        shared.guest.call("POST", f"{shared.path}/runs/{run_id}/input", {"text": ""})
    seen += shared.events(run_id, seen[-1]["cursor"])
    assert seen == list(shared.events(run_id))
    assert "".join(event["data"]["text"] for event in seen if event["type"] == "stdout") == "0\n1\n2\n"


def test_a_websocket_sends_the_same_events_and_closes_after_finished(shared: Context) -> None:
    run = shared.ok("print('a')\ndisplay('b')\n1")
    events = list(shared.events(run["id"]))
    with shared.websocket(run["id"]) as connection:
        assert frames(connection) == events
        assert connection.close_code == 1000
    with shared.websocket(run["id"], events[1]["cursor"]) as connection:
        assert frames(connection) == events[2:]


def test_input_and_interrupt_over_websocket(shared: Context) -> None:
    run_id = shared.submit("print(input('? '))\nimport time\ntime.sleep(60)", allow_stdin=True)
    with shared.websocket(run_id) as connection:
        received: list[Json] = []
        for message in connection:
            received.append(json.loads(message))
            if received[-1]["type"] == "input_request":
                connection.send(json.dumps({"type": "input", "text": "typed"}))
            if "\n" in received[-1]["data"].get("text", ""):
                connection.send(json.dumps({"type": "interrupt"}))
    assert received[-1]["data"]["status"] == "interrupted"
    assert text(shared.get(run_id)) == "typed\n"


@pytest.mark.parametrize("message", ["nonsense", "[]", '{"type": "other"}', '{"type": "interrupt", "x": 1}', b"\x00"])
def test_anything_else_over_websocket_closes_with_1008_and_says_why(shared: Context, message: str | bytes) -> None:
    run_id = shared.submit("input()", allow_stdin=True)
    shared.until(run_id, "input_request")
    with shared.websocket(run_id) as connection:
        connection.send(message)
        frames(connection)
        assert connection.close_code == 1008
        assert json.loads(connection.close_reason or "")["code"] == "invalid_request"
    assert shared.get(run_id)["state"] == "running"  # the mistake of one client harms nobody else
    shared.interrupt(run_id)
    shared.wait(run_id)


def test_errors_before_the_stream_are_plain_http(shared: Context) -> None:
    run = shared.ok("1")
    path = f"{shared.path}/runs/{run['id']}/events"
    other = shared.ok("2")
    for cursor, status, code in (
        ("nonsense", 400, "malformed_cursor"),
        (other["cursor"], 409, "foreign_cursor"),
        (run["cursor"].rsplit(".", 2)[0] + ".999999.999999", 409, "cursor_beyond_head"),
    ):
        for headers in ({}, {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}):
            response = shared.guest.http.get(path, params={"cursor": cursor}, headers=headers)
            assert (response.status_code, response.json()["code"]) == (status, code)


def test_the_context_tells_what_happens_to_its_runs(context: Context) -> None:
    run = context.ok("1")
    expected = ["queued", "context_state", "run_started", "run_finished"]
    kinds = []
    with contextlib.closing(context.events()) as events:  # type: ignore[type-var]
        for event in events:
            kinds.append(event["type"])
            if event["type"] == "run_finished":
                assert event["data"] == {"run_id": run["id"], "status": "ok"}
                break
    assert [kind for kind in kinds if kind in expected][-4:-1] != []
    assert kinds[0] == "context_state"


def test_a_flood_keeps_its_head_and_tail_and_says_what_is_missing(shared: Context) -> None:
    """sandbox-sdk#255 (fixed 10 MB cap), papermill#426 (output trimmed, exit 0), jupyter_server's rate limit (0 bytes of a
    10 MB print delivered). 100 MB printed: guest memory bounded, truncation said, the next cell works."""
    before = shared.guest.health()["memory_bytes"]
    run = shared.ok("print('first')\nfor _ in range(1000): print('x' * 99_999)\nprint('last')")
    truncated = run["truncated"]
    printed = text(run)
    assert printed.startswith("first\n")
    assert printed.endswith("last\n")
    assert len(printed) + truncated["bytes"] == len("first\n") + 100_000_000 + len("last\n")
    assert [output["type"] for output in run["outputs"]] == ["stdout", "truncated", "stdout"]
    assert shared.guest.health()["memory_bytes"] - before < 100 * 1024 * 1024
    assert shared.value("1 + 1") == "2"


def test_a_flood_does_not_push_out_results(shared: Context) -> None:
    run = shared.ok("display('kept')\nfor _ in range(200): print('x' * 99_999)\n'value'")
    kinds = [output["type"] for output in run["outputs"]]
    assert kinds == ["display", "stdout", "truncated", "stdout", "result"]


def test_a_reader_that_stalls_holds_nobody_up_and_meets_a_gap(guest: Guest) -> None:
    """The producer never waits for readers; nothing is buffered for a slow one."""
    context = guest.create()
    run_id = context.submit("input()\nfor _ in range(600): print('y' * 99_999)", allow_stdin=True)
    context.until(run_id, "input_request")
    with socket.create_connection(("127.0.0.1", guest.port)) as stalled:
        stalled.sendall(f"GET {context.path}/runs/{run_id}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        stalled.recv(100)
        guest.call("POST", f"{context.path}/runs/{run_id}/input", {"text": ""})
        assert context.wait(run_id)["status"] == "ok"
        with stalled.makefile("rb") as file:
            kinds = [line.split()[1].decode() for line in _until_finished(file) if line.startswith(b"event: ")]
    assert "gap" in kinds
    assert kinds[-1] == "finished"
    context.delete()


def _until_finished(lines: object) -> list[bytes]:
    collected: list[bytes] = []
    for line in lines:  # type: ignore[attr-defined]
        collected.append(line)
        if line == b"event: finished\n":
            return collected
    raise AssertionError("the stream ended too early")


def test_clients_that_vanish_leave_nothing_behind(guest: Guest, shared: Context) -> None:
    """workers-sdk#13442, sandbox-sdk#224: controller already closed, listener leaks. E2B PR#328: a client that goes away
    does not end the run."""
    run_id = shared.submit("import time\nprint('go')\nwhile True: time.sleep(0.01)")
    shared.until(run_id, "stdout")
    before = guest.health()["open_files"]
    for _ in range(40):
        next(shared.events(run_id))
        with shared.websocket(run_id) as connection:
            connection.recv()
    # A leak would be 40 at least; a kernel that is made ahead meanwhile takes some.
    wait_for(lambda: bool(guest.health()["open_files"] < before + 30), "descriptors to be closed")
    assert shared.get(run_id)["state"] == "running"
    shared.interrupt(run_id)
    shared.wait(run_id)


def test_many_readers_of_one_run_see_the_same(shared: Context) -> None:
    run_id = shared.submit("input()\nfor i in range(50): print(i, flush=True)", allow_stdin=True)
    shared.until(run_id, "input_request")
    seen: list[list[Json]] = []
    readers = [threading.Thread(target=lambda: seen.append(list(shared.events(run_id)))) for _ in range(5)]
    for reader in readers:
        reader.start()
    shared.guest.call("POST", f"{shared.path}/runs/{run_id}/input", {"text": ""})
    for reader in readers:
        reader.join()
    assert len(seen) == 5
    assert all(events == seen[0] for events in seen)
