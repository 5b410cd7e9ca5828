"""The relay against guests that are wrong, rude, slow or dead. The guest is untrusted: none of it may be our failure."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from cloche.errors import ERRORS, ErrorBody
from cloche_server.relay import _guest
from cloche_server.uplink import _pool

from .conftest import Harness
from .fake_guest import http_answer

Answer = bytes | Callable[[asyncio.StreamWriter], Any]


async def ask(cloche: Harness, answer: Answer, path: str = "contexts", **request: Any) -> httpx.Response:
    """One call to a fresh sandbox whose guest answers it with these very bytes."""
    sandbox_id = await cloche.sandbox()

    async def raw(_m: str, _t: str, _h: dict[str, str], _b: bytes, writer: asyncio.StreamWriter) -> None:
        if callable(answer):
            await answer(writer)
        else:
            writer.write(answer)

    cloche.driver.guests[sandbox_id].raw = raw
    method = request.pop("method", "GET")
    return await cloche.client.request(method, f"/v1/sandboxes/{sandbox_id}/{path}", **request)


def code_of(response: httpx.Response) -> str:
    body = ErrorBody.model_validate_json(response.content)
    assert ERRORS[body.code].status == response.status_code
    assert body.request_id == response.headers["X-Request-Id"]
    return body.code


async def test_a_call_arrives_checked_and_complete(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    response = await cloche.client.post(
        f"/v1/sandboxes/{sandbox_id}/contexts/default/runs?wait_s=2", json={"code": "é", "timeout_s": 5}
    )
    assert response.status_code == 200
    seen = response.json()
    assert (seen["method"], seen["target"]) == ("POST", "/v1/contexts/default/runs?wait_s=2.0")
    assert json.loads(seen["body"])["code"] == "é"
    assert "authorization" not in seen["headers"]
    assert "cookie" not in seen["headers"]


async def test_what_the_server_refuses_never_reaches_the_guest(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    guest = cloche.driver.guests[sandbox_id]
    before = len(guest.requests)
    base = f"/v1/sandboxes/{sandbox_id}/contexts"
    for method, path, body in (
        ("POST", f"{base}/default/runs", {"code": 1}),
        ("POST", f"{base}/default/runs?wait_s=99", {"code": "1"}),
        ("POST", f"{base}/default/interrupt", {"x": 1}),
        ("GET", f"{base}/default/history?limit=0", None),
        ("GET", f"{base}/ctx-UPPER/runs", None),
        ("GET", f"{base}/default/runs/run-x/events", None),
        ("POST", f"{base}/default/runs", {"code": "x" * 5_000_000}),
    ):
        response = await cloche.client.request(method, path, json=body)
        assert code_of(response) in {"invalid_request", "not_found"}
    assert len(guest.requests) == before


async def test_headers_of_the_guest_do_not_pass(cloche: Harness) -> None:
    answer = http_answer(
        200, {}, Set_Cookie="a=b", Location="http://evil", X_Request_Id="forged", Access_Control_Allow_Origin="*"
    )
    response = await ask(cloche, answer)
    assert response.status_code == 200
    assert response.headers["X-Request-Id"].startswith("req-")
    for name in ("Set-Cookie", "Location", "Access-Control-Allow-Origin"):
        assert name not in response.headers


async def test_an_html_type_does_not_pass(cloche: Harness) -> None:
    response = await ask(cloche, http_answer(200, {"a": 1}, "text/html"))
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_an_error_of_the_guest_becomes_ours(cloche: Harness) -> None:
    body = {
        "code": "context_dead",
        "message": "it \x1b[31mdied",
        "hint": "restart",
        "retryable": True,
        "details": {"a": 1, "b\x07": ["\x1b]0;x"]},
        "request_id": "forged",
    }
    response = await ask(cloche, http_answer(409, body))
    error = ErrorBody.model_validate_json(response.content)
    assert (error.code, error.hint, error.retryable) == ("context_dead", "restart", False)
    assert error.details == {"a": 1, "b\ufffd": ["\ufffd]0;x"]}
    assert "\x1b" not in error.message
    assert error.request_id == response.headers["X-Request-Id"]


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", id="another protocol"),
        pytest.param(OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", id="two lengths"),
        pytest.param(OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", id="conflicting lengths"),
        pytest.param(OK + b"Content-Length: -5\r\n\r\n", id="negative length"),
        pytest.param(OK + b"Content-Length: 99999999999999\r\n\r\n", id="endless body"),
        pytest.param(OK + b"A: " + b"x" * 70_000 + b"\r\n\r\n", id="header bomb"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 50, id="flood of 1xx"),
        pytest.param(b"HTTP/1.1 101 Switching\r\n\r\n", id="unasked upgrade"),
        pytest.param(http_answer(200, b"<html>"), id="no JSON"),
        pytest.param(http_answer(200, b"[1]"), id="no object"),
        pytest.param(http_answer(200, b'{"a": NaN}'), id="NaN"),
        pytest.param(http_answer(200, b'{"a": ' * 5000 + b"1" + b"}" * 5000), id="deep JSON"),
        pytest.param(http_answer(204, b""), id="undocumented status"),
        pytest.param(http_answer(302, b"", Location="http://169.254.169.254/"), id="redirect"),
        pytest.param(http_answer(404, {"message": "no body of ours"}), id="strange error"),
        pytest.param(http_answer(401, {"code": "unauthenticated", "message": "give me your key"}), id="not its code"),
        pytest.param(http_answer(409, {"code": "not_found", "message": "x"}), id="code and status differ"),
        pytest.param(http_answer(500, {"code": "internal", "message": "a defect"}), id="its own defect"),
        pytest.param(http_answer(404, b"x" * 100_000), id="huge error"),
        pytest.param(OK + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n", id="bad chunk"),
    ],
)
async def test_nonsense_is_a_fault_of_the_guest(cloche: Harness, answer: bytes) -> None:
    assert code_of(await ask(cloche, answer)) == "guest_fault"
    assert cloche.driver.guests  # its connection is gone, the sandbox is not


async def test_a_second_answer_is_nobodys_answer(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    guest = cloche.driver.guests[sandbox_id]
    count = 0

    async def twice(_m: str, _t: str, _h: dict[str, str], _b: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        writer.write(http_answer(200, {"n": count}) + http_answer(200, {"n": "forged"}))

    guest.raw = twice
    for n in range(1, 6):
        response = await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")
        assert response.json() == {"n": n}


async def test_a_guest_that_hangs_up_is_unreachable(cloche: Harness) -> None:
    async def hang_up(writer: asyncio.StreamWriter) -> None:
        writer.close()

    assert code_of(await ask(cloche, hang_up)) == "sandbox_unreachable"


async def test_a_guest_that_is_cut_in_the_middle_is_unreachable(cloche: Harness) -> None:
    async def half(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b'Content-Length: 100\r\n\r\n{"a"')
        await writer.drain()
        writer.close()

    assert code_of(await ask(cloche, half)) == "sandbox_unreachable"


async def test_a_silent_guest_is_unreachable_after_a_bound_that_is_said(
    cloche: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    monkeypatch.setattr("cloche_server.http._handler.guest_call", _hasty)
    response = await ask(cloche, silent)
    assert code_of(response) == "sandbox_unreachable"
    assert response.json()["details"] == {"bound_s": 0.1}


def _hasty(*_: object) -> _guest.GuestCall:
    return _guest.GuestCall("GET", "/v1/contexts", {200}, bound_s=0.1)


async def test_a_sandbox_without_connections_is_unreachable(cloche: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox_id = await cloche.sandbox()
    await cloche.driver.guests.pop(sandbox_id).close()
    monkeypatch.setattr(_pool.WirePool.take, "__defaults__", (0.1,))
    response = await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")
    assert code_of(response) == "sandbox_unreachable"
    assert response.json()["details"]["bound_s"] == 0.1


async def test_large_answers_pass_in_parts(cloche: Harness) -> None:
    text = json.dumps({"a": "x" * 30_000_000}).encode()
    response = await ask(cloche, http_answer(200, text))
    assert response.content == text
    assert response.headers["Content-Length"] == str(len(text))


@pytest.mark.expected_logs("an answer was cut short")
async def test_an_answer_over_the_cap_is_cut(cloche: Harness) -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
            await writer.drain()

    with pytest.raises(httpx.RemoteProtocolError):
        await ask(cloche, endless)


async def test_a_client_that_goes_away_frees_the_guest(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    guest = cloche.driver.guests[sandbox_id]
    begun = asyncio.Event()

    async def wait(_m: str, _t: str, _h: dict[str, str], _b: bytes, _w: asyncio.StreamWriter) -> None:
        begun.set()
        await asyncio.sleep(30)

    guest.raw = wait
    task = asyncio.create_task(cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts"))
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(30):
        while not guest.disconnects:
            await asyncio.sleep(0.01)
        while len(cloche.server.services.open_calls):  # the call ends behind its connection to the guest
            await asyncio.sleep(0.01)


async def test_connections_are_used_again_within_one_sandbox(cloche: Harness) -> None:
    first, second = await cloche.sandbox(), await cloche.sandbox()
    for _ in range(20):
        for sandbox_id in (first, second):
            seen = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")).json()
            assert seen["target"] == "/v1/contexts"
    # Two for the start, and one when an answer is here before its connection is back; 20 if none were used again.
    assert all(len(guest.replies) < 10 for guest in cloche.driver.guests.values())


async def test_many_calls_at_once_each_get_their_own_answer(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    url = f"/v1/sandboxes/{sandbox_id}/contexts/default/runs"
    answers = await asyncio.gather(*(cloche.client.post(url, json={"code": str(n)}) for n in range(80)))
    assert [json.loads(answer.json()["body"])["code"] for answer in answers] == [str(n) for n in range(80)]


def test_texts_of_guests_are_made_printable() -> None:
    assert _guest.printable("a\x1b]0;x\x07\u202eb\nc") == "a\ufffd]0;x\ufffd\ufffdb\nc"
    assert len(_guest.printable("x" * 10_000)) == 2001
