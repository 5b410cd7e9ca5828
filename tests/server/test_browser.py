"""Browsers: login by a one-time link, the cookie's limits, links to one terminal, and pages of other origins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from cloche.models import Role

from .conftest import Harness

TERMINAL = "term-abcdefghijkl"


@asynccontextmanager
async def logged_in(cloche: Harness, role: Role = Role.MEMBER) -> AsyncIterator[httpx.AsyncClient]:
    """A browser: a cookie, and no key."""
    async with cloche.client_of("alice", role) as owner:
        made = await owner.post("/v1/browser/logins", json={"next": "/ui/terminal"})
        assert made.status_code == 201, made.text
    async with cloche.stranger() as browser:
        answer = await browser.get(made.json()["path"])
        assert (answer.status_code, answer.headers["Location"]) == (303, "/ui/terminal")
        yield browser


async def test_a_link_logs_in_once(cloche: Harness) -> None:
    async with cloche.client_of("alice") as owner:
        path = (await owner.post("/v1/browser/logins", json={})).json()["path"]
    async with cloche.stranger() as browser:
        answer = await browser.get(path)
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert (await browser.get("/v1/info")).json()["owner"] == "alice"
    async with cloche.stranger() as other:
        assert (await other.get(path)).status_code == 401


@pytest.mark.parametrize("next_page", ["//evil.example", "https://evil.example/", "/v1/info", "/ui/\r\nX: y"])
async def test_a_login_leads_to_our_pages_only(cloche: Harness, next_page: str) -> None:
    assert (await cloche.client.post("/v1/browser/logins", json={"next": next_page})).status_code == 400
    answer = await cloche.client.get("/ui/login", params={"token": "x", "next": next_page})
    assert answer.status_code == 400


async def test_a_cookie_changes_nothing_without_our_origin(cloche: Harness) -> None:
    async with logged_in(cloche) as browser:
        body = {"name": "box"}
        assert (await browser.post("/v1/sandboxes", json=body)).status_code == 403
        foreign = {"Origin": "https://evil.example"}
        assert (await browser.post("/v1/sandboxes", json=body, headers=foreign)).status_code == 403
        ours = {"Origin": cloche.base}
        assert (await browser.post("/v1/sandboxes", json=body, headers=ours)).status_code == 201


async def test_a_session_ends_with_its_key(cloche: Harness) -> None:
    async with logged_in(cloche) as browser:
        assert (await browser.get("/v1/info")).status_code == 200
        keys = (await cloche.client.get("/v1/keys")).json()["items"]
        key_id = next(key["id"] for key in keys if key["owner"] == "alice")
        await cloche.client.delete(f"/v1/keys/{key_id}")
        assert (await browser.get("/v1/info")).status_code == 401


async def test_a_share_opens_one_terminal_and_nothing_else(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    path = f"/v1/sandboxes/{sandbox_id}/terminals/{TERMINAL}"
    share = (await cloche.client.post(f"{path}/share", json={})).json()
    assert urlsplit(share["path"]).fragment == f"share={share['token']}"
    async with cloche.stranger(share["token"]) as holder:
        assert (await holder.get(path)).status_code == 200
        assert (await holder.get(path.replace("abc", "xyz"))).status_code == 401
        for method, other in [
            ("DELETE", path),
            ("POST", f"{path}/resize"),
            ("GET", f"{path}/recording"),
            ("GET", f"/v1/sandboxes/{sandbox_id}"),
            ("GET", "/v1/info"),
        ]:
            answer = await holder.request(method, other)
            assert answer.status_code == 401, (method, other)


async def test_a_share_is_listed_and_revoked_alone(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    path = f"/v1/sandboxes/{sandbox_id}/terminals/{TERMINAL}"
    first, second = [(await cloche.client.post(f"{path}/share", json={})).json() for _ in range(2)]
    listed = (await cloche.client.get(f"{path}/shares")).json()["items"]
    assert [item["id"] for item in listed] == [first["id"], second["id"]]
    assert listed[0]["expires_at"] == first["expires_at"]
    assert listed[0]["watchers"] == 0
    assert first["token"] not in str(listed)
    other = path.replace("abc", "xyz")
    assert (await cloche.client.get(f"{other}/shares")).json()["items"] == []
    assert (await cloche.client.delete(f"{other}/shares/{first['id']}")).status_code == 404
    revoked = await cloche.client.delete(f"{path}/shares/{first['id']}")
    assert (revoked.status_code, revoked.json()["id"]) == (200, first["id"])
    assert (await cloche.client.delete(f"{path}/shares/{first['id']}")).status_code == 404
    assert await statuses(cloche, path, first, second) == [401, 200]
    assert [item["id"] for item in (await cloche.client.get(f"{path}/shares")).json()["items"]] == [second["id"]]


async def statuses(cloche: Harness, path: str, *shares: dict[str, str]) -> list[int]:
    """What holders of these links get."""
    found = []
    async with cloche.stranger() as holder:
        for share in shares:
            answer = await holder.get(path, headers={"Authorization": f"Bearer {share['token']}"})
            found.append(answer.status_code)
    return found


async def test_strangers_viewers_and_holders_of_a_link_revoke_nothing(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    path = f"/v1/sandboxes/{sandbox_id}/terminals/{TERMINAL}"
    share = (await cloche.client.post(f"{path}/share", json={})).json()
    holders = cloche.stranger(share["token"])
    async with (
        cloche.client_of("mallory") as stranger,
        cloche.client_of("admin", Role.VIEWER) as viewer,
        holders as holder,
    ):
        for client, status in ((stranger, 404), (viewer, 403), (holder, 401)):
            assert (await client.get(f"{path}/shares")).status_code == status
            assert (await client.delete(f"{path}/shares/{share['id']}")).status_code == status
    assert await statuses(cloche, path, share) == [200]


async def test_a_share_ends_in_time(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    path = f"/v1/sandboxes/{sandbox_id}/terminals/{TERMINAL}"
    share = (await cloche.client.post(f"{path}/share", json={"ttl_s": 1})).json()
    async with asyncio.timeout(30):
        while await statuses(cloche, path, share) != [401]:
            await asyncio.sleep(0.05)
    assert (await cloche.client.get(f"{path}/shares")).json()["items"] == []


async def test_shares_are_bounded(cloche: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche_server.shares.MAX_SHARES", 2)
    path = f"/v1/sandboxes/{await cloche.sandbox()}/terminals/{TERMINAL}"
    made = [await cloche.client.post(f"{path}/share", json={}) for _ in range(3)]
    assert [answer.status_code for answer in made] == [201, 201, 429]
    await cloche.client.delete(f"{path}/shares/{made[0].json()['id']}")
    assert (await cloche.client.post(f"{path}/share", json={})).status_code == 201


async def test_a_share_is_made_by_writers_for_their_own_sandboxes(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    path = f"/v1/sandboxes/{sandbox_id}/terminals/{TERMINAL}/share"
    async with cloche.client_of("mallory") as stranger, cloche.client_of("admin", Role.VIEWER) as viewer:
        assert (await stranger.post(path, json={})).status_code == 404
        assert (await viewer.post(path, json={})).status_code == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", None])
async def test_a_page_of_another_origin_opens_no_terminal_by_cookie(cloche: Harness, origin: str | None) -> None:
    """Cross-site WebSocket hijacking: browsers send the cookie whoever asks."""
    sandbox_id = await cloche.sandbox()
    async with logged_in(cloche) as browser:
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    url = f"{cloche.base.replace('http', 'ws')}/v1/sandboxes/{sandbox_id}/terminals/{TERMINAL}/attach"
    with pytest.raises(InvalidStatus, match="403"):
        async with connect(
            url,
            subprotocols=["term.v1"],  # type: ignore[list-item]
            origin=origin,  # type: ignore[arg-type]
            additional_headers={"Cookie": cookie},
            proxy=None,
        ):
            pass


async def test_without_key_cookie_or_link_there_is_no_terminal(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    url = f"{cloche.base.replace('http', 'ws')}/v1/sandboxes/{sandbox_id}/terminals/{TERMINAL}/attach"
    for subprotocols in (["term.v1"], ["term.v1", "cloche.share.clt_forged.x"]):
        with pytest.raises(InvalidStatus, match="401"):
            async with connect(url, subprotocols=subprotocols, proxy=None):  # type: ignore[arg-type]
                pass


async def test_attach_speaks_websocket_only(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    answer = await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/terminals/{TERMINAL}/attach")
    assert answer.status_code == 400
