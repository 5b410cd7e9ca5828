"""Mistakes of callers: every one is a typed 4xx, none a 500."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

import pytest
from guest_process import Context, Guest

UNKNOWN = "ctx-000000000000"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", f"/v1/contexts/{UNKNOWN}", 404, "not_found"),
        ("GET", "/v1/contexts/%00", 404, "not_found"),
        ("DELETE", f"/v1/contexts/{UNKNOWN}", 404, "not_found"),
        ("POST", f"/v1/contexts/{UNKNOWN}/runs", 404, "not_found"),
        ("GET", f"/v1/contexts/{UNKNOWN}/events", 404, "not_found"),
        ("PUT", "/v1/contexts", 405, "method_not_allowed"),
        ("DELETE", "/v1/contexts", 405, "method_not_allowed"),
        ("HEAD", "/v1/contexts", 405, None),
        ("POST", "/v1/health", 405, "method_not_allowed"),
        ("GET", "/v1/health?x=1", 400, "invalid_request"),
        ("GET", "/v1/contexts?limit=1", 400, "invalid_request"),
    ],
)
def test_wrong_places_and_methods_are_typed(
    guest: Guest, method: str, path: str, status: int, code: str | None
) -> None:
    content = b'{"code": "1"}' if path.endswith("/runs") else None
    response = guest.http.request(method, path, content=content)
    assert response.status_code == status
    if code is not None:
        assert response.json()["code"] == code
        assert response.json()["request_id"] == response.headers["X-Request-Id"]
    if status == 405:
        assert method not in response.headers["Allow"].split(", ")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("not json", ""),
        ("[]", ""),
        ("null", ""),
        ('{"code": 1}', "code"),
        ("{}", "code"),
        ('{"code": "1", "codes": "2"}', "codes"),
        ('{"code": "1", "timeout_s": 0}', "timeout_s"),
        ('{"code": "1", "timeout_s": "soon"}', "timeout_s"),
        ('{"code": "1", "timeout_s": 1e9}', "timeout_s"),
        ('{"code": "1", "env": {"1X": "y"}}', "env.1X.[key]"),
        ('{"code": "1", "env": {"X": null}}', "env.X"),
        ('{"code": "1", "env": {"X": "\\u0000"}}', "env.X"),
        ('{"code": "1", "id": "run-UPPER"}', "id"),
        ('{"code": "' + "x" * (4 * 1024 * 1024 + 1) + '"}', "code"),
        ("[" * 100_000, ""),
        ('{"code": "\\ud800"}', None),
    ],
)
def test_a_bad_body_is_refused_with_the_field(shared: Context, body: str, field: str | None) -> None:
    response = shared.guest.http.post(f"{shared.path}/runs", content=body.encode())
    assert response.status_code == 400, response.text[:500]
    error = response.json()
    assert error["code"] == "invalid_request"
    if field is not None:
        assert error["details"]["errors"][0]["field"] == field
    assert shared.value("1") == "1"


@pytest.mark.parametrize(
    "query", ["wait_s=-1", "wait_s=61", "wait_s=x", "wait_s=1&wait_s=2", "wait=1", "wait_s=nan", "wait_s=inf"]
)
def test_a_bad_query_is_refused(shared: Context, query: str) -> None:
    error = shared.guest.call("POST", f"{shared.path}/runs?{query}", {"code": "1"}, status=400)
    assert error["code"] == "invalid_request"
    assert error["details"]["errors"]


@pytest.mark.parametrize(
    "body",
    [
        {"language": "cobol"},
        {"cwd": "relative"},
        {"name": ""},
        {"limits": {"memory_mb": 1}},
        {"restart_policy": "maybe"},
        {"interrupt_grace_s": 0},
        {"unknown": 1},
    ],
)
def test_a_bad_context_is_refused(guest: Guest, body: dict[str, Any]) -> None:
    before = guest.health()["contexts"]
    assert guest.call("POST", "/v1/contexts", body, status=400)["code"] == "invalid_request"
    assert guest.health()["contexts"] == before


@pytest.mark.parametrize("limit", ["0", "1001", "x"])
def test_a_bad_history_limit_is_refused(shared: Context, limit: str) -> None:
    shared.guest.call("GET", f"{shared.path}/history?limit={limit}", status=400)


def test_actions_without_a_body_refuse_one_with_fields(shared: Context) -> None:
    error = shared.guest.call("POST", f"{shared.path}/interrupt", {"signal": 9}, status=400)
    assert error["details"]["errors"][0]["field"] == "signal"


def test_an_unknown_run_is_not_found(shared: Context) -> None:
    error = shared.guest.call("GET", f"{shared.path}/runs/run-000000000000", status=404)
    assert error["details"] == {"kind": "run", "id": "run-000000000000"}


@pytest.mark.parametrize(("path", "stays"), [("/v1/nothing", False), ("/v1/health", True)])
def test_a_connection_that_will_be_closed_says_so(guest: Guest, path: str, stays: bool) -> None:
    """It did not where it answered before the request was read to its end. The next request of the client was sent into a
    connection that was just being closed."""
    with socket.create_connection(("127.0.0.1", guest.port), timeout=60) as connection:
        for _ in range(2 if stays else 1):
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: guest\r\n\r\n".encode())
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            answer.read()
            assert answer.will_close is not stays
        if not stays:
            assert connection.recv(1) == b""


@pytest.mark.parametrize("chunked", [False, True])
def test_a_huge_body_is_too_large(guest: Guest, shared: Context, chunked: bool) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", guest.port, timeout=60)
    connection.putrequest("POST", f"{shared.path}/runs")
    size = 33 * 1024 * 1024
    piece = b"x" * 65536
    try:
        if chunked:
            connection.putheader("Transfer-Encoding", "chunked")
            connection.endheaders()
            for _ in range(size // len(piece)):
                connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            connection.send(b"0\r\n\r\n")
        else:
            connection.putheader("Content-Length", str(size))
            connection.endheaders()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the guest has answered and hung up before we had sent everything
    response = connection.getresponse()
    error = json.loads(response.read())
    assert (response.status, error["code"]) == (413, "body_too_large")
    assert error["details"]["limit_bytes"] < size
    connection.close()


def test_a_request_id_is_passed_through(guest: Guest) -> None:
    response = guest.http.get("/v1/contexts/ctx-000000000000", headers={"X-Request-Id": "req-12.a:b"})
    assert response.headers["X-Request-Id"] == response.json()["request_id"] == "req-12.a:b"
    assert guest.http.get("/v1/health", headers={"X-Request-Id": "a\tb"}).headers["X-Request-Id"] != "a\tb"


def test_health_tells_how_the_guest_is(guest: Guest, shared: Context) -> None:
    health = guest.health()
    assert health["status"] == "ok"
    assert health["contexts"] >= 1
    assert 10e6 < health["memory_bytes"] < 1e9
    assert health["open_files"] > 5
