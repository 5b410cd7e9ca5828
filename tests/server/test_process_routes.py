"""What the server adds to the guest's processes: keys, roles, checked bodies, bytes that pass as they are."""

from __future__ import annotations

import asyncio

import pytest

from cloche.models import Role

from .conftest import Harness
from .fake_guest import http_answer

PROCESS = "proc-abcdefghijkl"


def answering(status: int, body: object):  # type: ignore[no-untyped-def]
    async def raw(method: str, target: str, headers: dict[str, str], sent: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(http_answer(status, {"status": "ok"} if target == "/v1/health" else body))

    return raw


async def test_input_is_passed_on_as_it_is(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    guest = cloche.driver.guests[sandbox_id]
    guest.raw = answering(200, {"offset": 5, "open": True})
    data = b'\0\xff{"not": json'
    path = f"/v1/sandboxes/{sandbox_id}/processes/{PROCESS}/stdin"
    response = await cloche.client.post(path, params={"offset": 3, "close": "true"}, content=data)
    assert (response.status_code, response.json()) == (200, {"offset": 5, "open": True})
    method, target, _, sent = guest.requests[-1]
    assert (method, sent) == ("POST", data)
    assert target.startswith(f"/v1/processes/{PROCESS}/stdin?")
    assert {"offset=3", "close=True"} <= set(target.partition("?")[2].split("&"))


@pytest.mark.parametrize("code", ["process_start_failed", "process_ended"])
async def test_errors_of_the_guest_keep_their_code_and_details(cloche: Harness, code: str) -> None:
    sandbox_id = await cloche.sandbox()
    status = {"process_start_failed": 422, "process_ended": 409}[code]
    body = {"code": code, "message": "no \x1b[31m", "details": {"reason": "not_found"}}
    cloche.driver.guests[sandbox_id].raw = answering(status, body)
    response = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/exec", json={"argv": ["x"]})
    assert (response.status_code, response.json()["code"]) == (status, code)
    assert response.json()["details"] == {"reason": "not_found"}
    assert "\x1b" not in response.json()["message"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "exec", {"argv": ["x"], "unknown": 1}),
        ("POST", "exec", {"argv": ["x"], "shell": "x"}),
        ("POST", "exec", {"argv": ["x"], "timeout_s": "5"}),
        ("POST", "processes", {}),
        ("POST", f"processes/{PROCESS}/wait", {"conditions": []}),
        ("POST", f"processes/{PROCESS}/wait", {"conditions": [{"type": "exit"}], "timeout_s": 61}),
        ("POST", f"processes/{PROCESS}/signal", {"signal": 99}),
        ("POST", f"processes/{PROCESS}/resize", {"cols": 80}),
        ("POST", "services", {"name": "a b", "shell": "x"}),
        ("GET", f"processes/{PROCESS}/output?stream=stdin", None),
        ("GET", f"processes/{PROCESS}/output?limit_bytes=0", None),
    ],
)
async def test_bad_input_never_reaches_the_guest(cloche: Harness, method: str, path: str, body: object) -> None:
    sandbox_id = await cloche.sandbox()
    before = len(cloche.driver.guests[sandbox_id].requests)
    response = await cloche.client.request(method, f"/v1/sandboxes/{sandbox_id}/{path}", json=body)
    assert (response.status_code, response.json()["code"]) == (400, "invalid_request")
    assert len(cloche.driver.guests[sandbox_id].requests) == before


async def test_ids_that_can_be_none_are_not_found(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    for path, kind in (
        ("processes/..%2f..", "process"),
        ("processes/proc-X", "process"),
        ("services/%2e%2e", "service"),
    ):
        response = await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/{path}")
        assert (response.status_code, response.json()["details"]["kind"]) == (404, kind)


async def test_viewers_look_and_others_have_nothing(cloche: Harness) -> None:
    async with cloche.client_of("ann") as ann:
        made = await ann.post("/v1/sandboxes", json={})
    base = f"/v1/sandboxes/{made.json()['id']}"
    async with cloche.client_of("ann", Role.VIEWER) as viewer:
        assert (await viewer.get(f"{base}/processes")).status_code == 200
        for path in ("exec", "processes", f"processes/{PROCESS}/resize", f"processes/{PROCESS}/stdin", "services"):
            assert (await viewer.post(f"{base}/{path}", json={"argv": ["x"]})).status_code == 403
    async with cloche.client_of("bob") as bob:
        for path in ("processes", f"processes/{PROCESS}", "services", "events"):
            assert (await bob.get(f"{base}/{path}")).status_code == 404
