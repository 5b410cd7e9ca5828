"""The HTTP edge: admission, limits, errors. Raw sockets where a client library would be too polite."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from cloche.errors import ERRORS, ErrorBody
from cloche.models import Role
from cloche_server.http import _app
from cloche_server.routes import ROUTES
from cloche_server.routing import RouteIndex

from .conftest import Harness, harness


def error_of(response: httpx.Response) -> ErrorBody:
    """The error body; every one is checked for what all have in common."""
    body = ErrorBody.model_validate_json(response.content)
    assert ERRORS[body.code].status == response.status_code
    assert body.request_id == response.headers["X-Request-Id"]
    assert response.headers["Content-Type"] == "application/json"
    assert "Traceback" not in response.text
    return body


async def raw(cloche: Harness, data: bytes) -> bytes:
    """Everything the server says to ``data`` until it hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", cloche.server.port)
    writer.write(data)
    answer = b""
    with suppress(ConnectionError):
        async with asyncio.timeout(30):
            while part := await reader.read(65536):
                answer += part
    writer.close()
    return answer


async def test_health_needs_no_key_and_everything_else_does(cloche: Harness) -> None:
    async with cloche.stranger() as stranger:
        assert (await stranger.get("/v1/health")).json() == {"status": "ok"}
        for header in ({}, {"Authorization": "Bearer clk_wrong"}, {"Authorization": "Basic x"}):
            response = await stranger.get("/v1/info", headers=header)
            assert error_of(response).code == "unauthenticated"
            assert response.headers["WWW-Authenticate"].startswith("Bearer")


async def test_info_says_who_you_are_and_what_isolates(cloche: Harness) -> None:
    info = (await cloche.client.get("/v1/info")).json()
    assert (info["owner"], info["role"], info["default_driver"]) == ("admin", "admin", "runc")
    assert info["drivers"][0]["isolation"] == "none, a fake"
    images = (await cloche.client.get("/v1/images")).json()["images"]
    assert [image["name"] for image in images] == ["python"]


@pytest.mark.parametrize("host", ["evil.example", "localhost.", "127.0.0.1.nip.io"])
@pytest.mark.parametrize("path", ["/v1/health", "/v1/info", "/docs", "/nothing"])
async def test_a_foreign_host_gets_nothing(cloche: Harness, host: str, path: str) -> None:
    assert error_of(await cloche.client.get(path, headers={"Host": host})).code == "forbidden"


async def test_a_missing_or_doubled_host_gets_nothing(cloche: Harness) -> None:
    doubled = await raw(cloche, b"GET /v1/health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
    missing = await raw(cloche, b"GET /v1/health HTTP/1.1\r\n\r\n")
    assert doubled.split(b" ")[1] in {b"400", b"403"}
    assert missing.split(b" ")[1] in {b"400", b"403"}


@pytest.mark.parametrize("origin", ["null", "http://evil.example", "http://localhost:1", "https://127.0.0.1"])
async def test_a_foreign_origin_changes_nothing_but_may_look(cloche: Harness, origin: str) -> None:
    refused = await cloche.client.post("/v1/sandboxes", json={}, headers={"Origin": origin})
    assert error_of(refused).code == "forbidden"
    looked = await cloche.client.get("/v1/sandboxes", headers={"Origin": origin})
    assert looked.status_code == 200
    assert not [name for name in looked.headers if name.lower().startswith("access-control")]


async def test_the_own_origin_may_change_things(cloche: Harness) -> None:
    response = await cloche.client.post("/v1/sandboxes", json={}, headers={"Origin": cloche.base})
    assert response.status_code == 201


async def test_unknown_paths_and_methods_are_typed(cloche: Harness) -> None:
    assert error_of(await cloche.client.get("/v1/nothing")).code == "not_found"
    assert error_of(await cloche.client.get("/v1/sandboxes/")).code == "not_found"
    wrong = await cloche.client.put("/v1/sandboxes", json={})
    assert error_of(wrong).code == "method_not_allowed"
    assert wrong.headers["Allow"] == "GET, HEAD, OPTIONS, POST"
    assert error_of(wrong).details == {"allowed": ["GET", "HEAD", "OPTIONS", "POST"]}
    strange = await cloche.client.request("TRACE", "/v1/sandboxes")
    assert error_of(strange).code == "method_not_allowed"
    assert "GET" in strange.headers["Allow"]


async def test_head_and_options_answer_without_a_body(cloche: Harness) -> None:
    head = await cloche.client.head("/v1/info")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["Content-Length"]) > 0
    options = await cloche.client.options("/v1/sandboxes")
    assert (options.status_code, options.content) == (204, b"")
    assert options.headers["Allow"] == "GET, HEAD, OPTIONS, POST"
    assert error_of(await cloche.client.options("/nothing")).code == "not_found"


@pytest.mark.parametrize(
    "content", [b"[1]", b'{"name": ', b'{"name": "\xff"}', b'{"metadata": {"a": NaN}}', b'{"nope": 1}', b"\x00" * 10]
)
async def test_a_bad_body_names_the_problem(cloche: Harness, content: bytes) -> None:
    body = error_of(await cloche.client.post("/v1/sandboxes", content=content))
    assert body.code == "invalid_request"
    assert body.details["errors"]


async def test_unknown_query_parameters_are_refused(cloche: Harness) -> None:
    body = error_of(await cloche.client.get("/v1/info?verbose=1"))
    assert body.details == {"errors": [{"field": "verbose", "problem": "Extra inputs are not permitted"}]}


@pytest.mark.parametrize("how", ["length", "chunked", "huge"])
async def test_a_body_over_the_limit_is_413_and_is_read(cloche: Harness, how: str) -> None:
    size = (40 if how == "huge" else 9) * 1024 * 1024

    async def parts() -> object:
        for _ in range(9):
            yield b" " * 1024 * 1024

    content = parts() if how == "chunked" else b" " * size
    response = await cloche.client.post("/v1/sandboxes", content=content)  # type: ignore[arg-type]
    assert error_of(response).code == "body_too_large"
    assert error_of(response).details == {"limit_bytes": 8 * 1024 * 1024}
    assert (await cloche.client.get("/v1/health")).status_code == 200


async def test_expect_100_continue_is_refused_before_the_body(cloche: Harness) -> None:
    head = b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    assert (await raw(cloche, head)).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"x" * 100_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10 + b"\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET /v1/health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /v1/health\r\n\r\n",
    ],
)
@pytest.mark.expected_logs("Malformed", "Unsatisfiable")
async def test_what_is_no_http_is_hung_up_on_and_harms_nobody(cloche: Harness, data: bytes) -> None:
    answer = await raw(cloche, data)
    assert answer == b"" or answer.split(b" ")[1] in {b"400", b"401", b"403"}
    assert (await cloche.client.get("/v1/health")).status_code == 200


@pytest.mark.expected_logs("unexpected exception")
async def test_a_defect_is_a_500_with_an_id_and_without_its_text(
    cloche: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cloche.server.services.images, "list", lambda: 1 / 0)
    response = await cloche.client.get("/v1/images")
    body = error_of(response)
    assert body.code == "internal"
    assert "division" not in response.text
    record = next(r for r in caplog.records if r.message == "unexpected exception")
    assert record.request_id == body.request_id  # type: ignore[attr-defined]
    assert record.exc_info


@pytest.mark.parametrize("data", [b"", b"GET /v1/hea", b"GET /v1/health HTTP/1.1\r\nHost: local"])
async def test_slow_clients_are_hung_up_on(short_dir: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(_app, "IDLE_S", 0.1)
    async with harness(short_dir) as cloche:
        assert await raw(cloche, data) == b""


async def test_a_slow_body_is_bounded(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_app, "BODY_S", 0.1)
    async with harness(short_dir) as cloche:
        key = str(cloche.client.headers["Authorization"])
        head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\nContent-Length: 9\r\n\r\n"
        assert await raw(cloche, head.encode() + b"{") == b""


async def test_roles_bound_what_a_key_may_do(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    async with cloche.client_of("admin", Role.VIEWER) as viewer, cloche.client_of("admin", Role.MEMBER) as member:
        assert (await viewer.get(f"/v1/sandboxes/{sandbox_id}")).status_code == 200
        assert error_of(await viewer.post("/v1/sandboxes", json={})).code == "forbidden"
        assert error_of(await viewer.delete(f"/v1/sandboxes/{sandbox_id}")).code == "forbidden"
        run = f"/v1/sandboxes/{sandbox_id}/contexts/default/runs"
        assert error_of(await viewer.post(run, json={"code": "1"})).code == "forbidden"
        assert error_of(await member.get("/v1/keys")).code == "forbidden"
        assert (await member.post(run, json={"code": "1"})).status_code == 200


async def test_every_route_refuses_strangers_and_bad_ids(cloche: Harness) -> None:
    async with cloche.stranger() as stranger:
        for route in ROUTES:
            path = re.sub(r"\{\w+\}", "..%2f..", route.path)
            if route.role is not None:
                assert error_of(await stranger.request(route.method, path)).code == "unauthenticated", route
            if "{" in route.path:
                body = error_of(await cloche.client.request(route.method, path, json=None))
                assert body.code in {"not_found", "invalid_request"}, (route, body)


async def test_answers_leave_without_delay(cloche: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nagle's algorithm and delayed acknowledgements cost 40 ms for each small answer (jupyter.md, finding 1). How long an
    answer takes is the machine's affair, too; whether the algorithm is off when it is written is ours."""
    images, off = cloche.server.services.images, []
    listed = images.list()
    monkeypatch.setattr(images, "list", lambda: off.extend(cloche.nodelay()) or listed)
    for _ in range(3):  # over one connection
        await cloche.client.get("/v1/images")
    assert off == [True] * 3


async def test_the_log_has_ids_and_routes_but_no_secrets(cloche: Harness, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    sandbox_id = await cloche.sandbox(env={"TOKEN": "hunter2"})
    run = f"/v1/sandboxes/{sandbox_id}/contexts/default/runs?wait_s=1"
    response = await cloche.client.post(run, json={"code": "password='hunter3'"})
    record = next(r for r in caplog.records if getattr(r, "request_id", "") == response.headers["X-Request-Id"])
    said = record.__dict__
    assert (said["method"], said["status"], said["sandbox_id"]) == ("POST", 200, sandbox_id)
    assert said["route"] == "/v1/sandboxes/{sandbox_id}/contexts/{context_id}/runs"
    assert said["key_id"].startswith("key-")
    everything = json.dumps([r.__dict__ for r in caplog.records if r.name.startswith("cloche")], default=str)
    for secret in ("hunter2", "hunter3", "wait_s=1", str(cloche.client.headers["Authorization"])[7:]):
        assert secret not in everything


async def test_the_page_and_the_description_come_from_here_alone(cloche: Harness) -> None:
    page = await cloche.client.get("/docs")
    assert page.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert not re.search(r"(src|href)=.?https?:", page.text)
    document = (await cloche.client.get("/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    operations = [op for methods in document["paths"].values() for op in methods.values()]
    assert len(operations) == len(ROUTES)


def test_a_route_cannot_be_there_twice() -> None:
    with pytest.raises(ValueError, match="two routes"):
        RouteIndex([ROUTES[0], ROUTES[0]])


def test_every_route_has_its_own_operation_id() -> None:
    names = [route.operation for route in ROUTES]
    assert len(set(names)) == len(names)
