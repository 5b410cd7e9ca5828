"""Bodies of any size through the relay, with guests that are rude. What real ones do is in tests/e2e/test_files.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cloche.errors import ErrorBody

from .conftest import Harness
from .fake_guest import http_answer

PATH = "files/content?path=x"


async def ask(cloche: Harness, answer: bytes, method: str = "GET", path: str = PATH, **request: Any) -> httpx.Response:
    sandbox_id = await cloche.sandbox()

    async def raw(_m: str, _t: str, _h: dict[str, str], _b: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    cloche.driver.guests[sandbox_id].raw = raw
    return await cloche.client.request(method, f"/v1/sandboxes/{sandbox_id}/{path}", **request)


async def test_conditions_and_ranges_reach_the_guest_and_nothing_else(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    headers = {"Range": "bytes=0-1", "If-None-Match": '"a"', "X-Other": "1", "Cookie": "a=b"}
    await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/{PATH}", headers=headers)
    method, target, seen, _ = cloche.driver.guests[sandbox_id].requests[-1]
    assert (method, target) == ("GET", "/v1/files/content?path=x&user=user")
    assert (seen["range"], seen["if-none-match"]) == ("bytes=0-1", '"a"')
    assert not {"x-other", "cookie", "authorization"} & set(seen)


async def test_names_keep_their_bytes(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/files/stat", params={"path": "a\nb|\x00e9&ü"})
    assert cloche.driver.guests[sandbox_id].requests[-1][1].startswith("/v1/files/stat?path=a%0Ab%7C%00e9%26%C3%BC&")


@pytest.mark.parametrize(
    ("etag", "passes"),
    [('"1f-a-0"', True), ('"x\tSet-Cookie: a=b"', False), ("*", False), ('"' + "a" * 200 + '"', False)],
)
async def test_what_the_guest_says_of_content_is_checked(cloche: Harness, etag: str, passes: bool) -> None:
    answer = http_answer(
        206, b"<script>", "text/html", ETag=etag, Content_Range="bytes 0-7/9", Content_Disposition="inline"
    )
    response = await ask(cloche, answer)
    assert response.status_code == 206
    assert response.content == b"<script>"
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert response.headers["Content-Disposition"] == "attachment; filename*=UTF-8''x"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Content-Range"] == "bytes 0-7/9"
    assert response.headers.get("ETag") == (etag if passes else None)


async def test_a_name_cannot_break_out_of_its_header(cloche: Harness) -> None:
    path = 'files/content?path=a/%0D%0ASet-Cookie:%20x=y";%00e9'
    response = await ask(cloche, http_answer(200, b""), path=path)
    assert (
        response.headers["Content-Disposition"] == "attachment; filename*=UTF-8''%0D%0ASet-Cookie%3A%20x%3Dy%22%3B%E9"
    )
    assert "Set-Cookie" not in response.headers


async def test_unchanged(cloche: Harness) -> None:
    response = await ask(cloche, b'HTTP/1.1 304 X\r\nETag: "1-2"\r\n\r\n')
    assert (response.status_code, response.content, response.headers["ETag"]) == (304, b"", '"1-2"')


async def test_a_body_passes_as_it_is(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    body = bytes(range(256)) * 4000
    await cloche.client.put(f"/v1/sandboxes/{sandbox_id}/{PATH}", content=body, headers={"If-Match": "*"})
    method, target, headers, seen = cloche.driver.guests[sandbox_id].requests[-1]
    assert (method, target) == ("PUT", "/v1/files/content?path=x&user=user&parents=False&atomic=True")
    assert headers["if-match"] == "*"
    assert seen == body


@pytest.mark.parametrize("size", [10, 3_000_000])
async def test_an_answer_before_the_end_of_the_body_ends_the_upload(cloche: Harness, size: int) -> None:
    sandbox_id = await cloche.sandbox()
    refusal = http_answer(507, ErrorBody(code="no_space", message="full").model_dump())
    guest = cloche.driver.guests[sandbox_id]
    guest.early = refusal

    async def parts() -> AsyncIterator[bytes]:
        yield b"x" * size
        await guest.answered_early.wait()
        for _ in range(100):
            yield b"x" * 10_000
            await asyncio.sleep(0)

    response = await cloche.client.put(f"/v1/sandboxes/{sandbox_id}/{PATH}", content=parts())
    assert (response.status_code, response.json()["code"]) == (507, "no_space")


async def test_what_the_server_refuses_is_not_passed_on(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    base = f"/v1/sandboxes/{sandbox_id}"
    before = len(cloche.driver.guests[sandbox_id].requests)
    for method, path, headers, expected in (
        ("PUT", "files/content", {}, "invalid_request"),
        ("PUT", "files/content?path=x&path=y", {}, "invalid_request"),
        ("PUT", "files/content?path=x&user=nobody", {}, "invalid_request"),
        ("PUT", "files/content?path=x&mode=9", {}, "invalid_request"),
        ("PUT", PATH, {"If-Match": "x" * 5000}, "invalid_request"),
        ("GET", "files/content?path=%00", {}, "invalid_request"),
        ("HEAD", PATH, {}, None),
        ("GET", "watches/watch-UPPER", {}, "not_found"),
    ):
        response = await cloche.client.request(method, f"{base}/{path}", headers=headers, content=b"")
        if expected is None:
            assert response.status_code == 405
        else:
            assert response.json()["code"] == expected, (method, path)
    assert len(cloche.driver.guests[sandbox_id].requests) == before


async def test_viewers_look_and_do_not_touch(cloche: Harness) -> None:
    from cloche.models import Role

    sandbox_id = await cloche.sandbox()
    base = f"/v1/sandboxes/{sandbox_id}"
    async with cloche.client_of("local", Role.VIEWER) as viewer:
        assert (await viewer.put(f"{base}/{PATH}", content=b"x")).json()["code"] == "forbidden"
        assert (await viewer.post(f"{base}/files/remove", json={"path": "x"})).json()["code"] == "forbidden"


async def test_large_answers_are_not_capped(cloche: Harness) -> None:
    """JSON answers are; content is not."""
    body = b"x" * 1_000_000
    cloche.settings.__dict__["max_answer_bytes"] = 1024
    assert len((await ask(cloche, http_answer(200, body))).content) == len(body)


async def test_a_client_that_leaves_in_the_middle_is_no_news(cloche: Harness) -> None:
    """While the server waited for it to read, nothing was said; while it waited for the guest, a warning was."""
    sandbox_id = await cloche.sandbox()
    guest = cloche.driver.guests[sandbox_id]

    async def half(_m: str, _t: str, _h: dict[str, str], _b: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(http_answer(200, b"x" * 100)[:-50])
        await asyncio.Event().wait()

    guest.raw = half
    async with cloche.client.stream("GET", f"/v1/sandboxes/{sandbox_id}/{PATH}") as response:
        assert await anext(response.aiter_raw()) == b"x" * 50
    async with asyncio.timeout(60):
        while not guest.disconnects or len(cloche.server.services.open_calls):
            await asyncio.sleep(0.01)
