"""Snapshots and forks with an idempotency key, on a real server with a fake driver."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloche.errors import SandboxStartFailed, StorageFull
from cloche_server.state import KeptAnswer

from .conftest import Harness, harness
from .fake_driver import FakeDriver


async def post(cloche: Harness, sandbox_id: str, what: str, key: str, **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key}
    return await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{what}", json=body, headers=headers)


def ids_of(answer: httpx.Response) -> list[str | None]:
    assert answer.status_code == 201, answer.text
    body = answer.json()
    if "children" not in body:
        return [body["id"]]
    return [child["sandbox"] and child["sandbox"]["id"] for child in body["children"]]


async def count(cloche: Harness, what: str) -> int:
    return len((await cloche.client.get(f"/v1/{what}")).json()["items"])


@pytest.mark.parametrize(("what", "body"), [("snapshots", {"name": "s"}), ("fork", {"count": 3})])
async def test_the_same_key_and_body_give_what_was_made_the_first_time(
    cloche: Harness, what: str, body: dict[str, Any]
) -> None:
    source = await cloche.sandbox()
    answers = await asyncio.gather(*(post(cloche, source, what, "k", **body) for _ in range(4)))
    answers.append(await post(cloche, source, what, "k", **body))
    first = ids_of(answers[0])
    assert all(ids_of(answer) == first for answer in answers)
    assert answers[-1].json().get("paused_s") == answers[0].json().get("paused_s")
    assert len(cloche.driver.checkpoints) == 1
    assert (await count(cloche, "sandboxes"), await count(cloche, "snapshots")) == (
        (1, 1) if what == "snapshots" else (4, 0)
    )
    if what == "fork":
        assert ids_of(await post(cloche, source, what, "other", **body)) != first


@pytest.mark.parametrize(
    ("what", "body", "other"), [("snapshots", {}, {"name": "s"}), ("fork", {"count": 2}, {"count": 1})]
)
async def test_a_key_of_another_body_or_sandbox_is_refused(
    cloche: Harness, what: str, body: dict[str, Any], other: dict[str, Any]
) -> None:
    source = await cloche.sandbox()
    await post(cloche, source, what, "k", **body)
    for answer in (
        await post(cloche, source, what, "k", **other),
        await post(cloche, await cloche.sandbox(), what, "k", **body),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        assert answer.json()["details"] == {"kind": "idempotency_key", "key": "k"}
    async with cloche.client_of("other") as stranger:
        theirs = (await stranger.post("/v1/sandboxes", json={})).json()["id"]
        mine = await stranger.post(f"/v1/sandboxes/{theirs}/{what}", json=body, headers={"Idempotency-Key": "k"})
        assert mine.status_code == 201


async def test_what_was_deleted_since_is_gone(cloche: Harness) -> None:
    source = await cloche.sandbox()
    first, second = ids_of(await post(cloche, source, "fork", "k", count=2))
    await cloche.client.delete(f"/v1/sandboxes/{first}")
    again = await post(cloche, source, "fork", "k", count=2)
    assert ids_of(again) == [None, second]
    assert again.json()["children"][0]["error"]["code"] == "gone"
    await cloche.client.delete(f"/v1/sandboxes/{second}")
    assert (await post(cloche, source, "fork", "k", count=2)).json()["code"] == "gone"
    saved = ids_of(await post(cloche, source, "snapshots", "k"))
    await cloche.client.delete(f"/v1/snapshots/{saved[0]}")
    assert (await post(cloche, source, "snapshots", "k")).json()["code"] == "gone"


@pytest.mark.parametrize("what", ["snapshots", "fork"])
async def test_a_key_whose_call_failed_is_free_again(cloche: Harness, what: str) -> None:
    source = await cloche.sandbox()
    cloche.driver.checkpoint_error = StorageFull("full")
    assert (await post(cloche, source, what, "k")).json()["code"] == "storage_full"
    cloche.driver.checkpoint_error = None
    assert len(ids_of(await post(cloche, source, what, "k"))) == 1


@pytest.mark.expected_logs("did not start", "could not")
async def test_a_child_that_failed_fails_again_with_the_same_error(cloche: Harness) -> None:
    source = await cloche.sandbox()
    cloche.driver.start_error = SandboxStartFailed("no room for it", details={"output": ""})
    failed = await post(cloche, source, "fork", "k")
    assert ids_of(failed) == [None]
    cloche.driver.start_error = None
    again = await post(cloche, source, "fork", "k")
    assert again.json()["children"] == failed.json()["children"]


async def test_keys_are_known_to_the_next_server(short_dir: Path) -> None:
    driver = FakeDriver()
    async with harness(short_dir, driver) as first:
        source = await first.sandbox()
        forked = ids_of(await post(first, source, "fork", "k", count=2))
        saved = ids_of(await post(first, source, "snapshots", "k"))
    async with harness(short_dir, driver) as second:
        assert ids_of(await post(second, source, "fork", "k", count=2)) == forked
        assert ids_of(await post(second, source, "snapshots", "k")) == saved
    for guest in list(driver.guests.values()):
        await guest.close()


async def test_a_fork_that_a_dead_server_left_half_made_answers_with_the_children_there_are(cloche: Harness) -> None:
    source = await cloche.sandbox()
    first, child = ids_of(await post(cloche, source, "fork", "k", count=2))
    kept = cloche.server.services.snapshots.repeated._forks._kept
    done = kept.find("admin", "fork", "k")
    assert done is not None
    cut_short = {**done.made, "done": False, "ids": {"1": child}, "errors": {}}
    kept.record("admin", "fork", "k", KeptAnswer(done.body_hash, cut_short))
    again = await post(cloche, source, "fork", "k", count=2)
    assert ids_of(again) == [None, child]
    assert again.json()["children"][0]["error"]["code"] == "sandbox_start_failed"
    kept.record("admin", "fork", "k", KeptAnswer(done.body_hash, {**cut_short, "ids": {"0": "a" * 20}}))
    anew = ids_of(await post(cloche, source, "fork", "k", count=2))
    assert not {None, first, child} & set(anew), "nothing was left of it, so it is made now"
