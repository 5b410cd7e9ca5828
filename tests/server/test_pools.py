"""Pools on a real server with a fake driver: what is parked, what is handed out, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloche.errors import StorageFull
from cloche.models import Role
from cloche_server.drivers import ExitReason, RunState, SandboxStatus
from cloche_server.templates import SandboxWorkshop

from . import fake_guest
from .conftest import Harness, harness
from .fake_driver import FakeDriver
from .fake_guest import http_answer

IMAGE_POOL = {"min": 2, "max": 5}

MANY = 40
"""Creates at once, far more than the server handles at a time."""


async def until(true: Callable[[], object], bound_s: float = 60) -> None:
    async with asyncio.timeout(bound_s):
        while not true():
            await asyncio.sleep(0.01)


async def pool_with(cloche: Harness, ready: int, client: httpx.AsyncClient | None = None, **body: Any) -> list[str]:
    """A pool of the image with so many ready; their ids."""
    answer = await (client or cloche.client).put("/v1/pools/p", json={"min": ready, "max": max(5, ready), **body})
    assert answer.status_code == 200, answer.text
    return await filled(cloche, ready)


async def filled(cloche: Harness, ready: int) -> list[str]:
    pools = cloche.server.services.pools
    await until(lambda: sum(len(pool.stock) for pool in pools.all()) == ready)
    return sorted(one.sandbox_id for pool in pools.all() for one in pool.stock.all())


async def create(cloche: Harness, client: httpx.AsyncClient | None = None, **body: Any) -> dict[str, Any]:
    answer = await (client or cloche.client).post("/v1/sandboxes", json=body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def told(cloche: Harness, sandbox_id: str) -> list[dict[str, Any]]:
    """The identities its guest was told, but for those that were no news to it: see `Binding.tell_again`."""
    requests = cloche.driver.guests[sandbox_id].requests
    told = [json.loads(body) for _, target, _, body in requests if target == "/v1/identity"]
    return [identity for identity in told if identity["reason"] is not None]


async def when_told(cloche: Harness, sandbox_id: str) -> list[dict[str, Any]]:
    """And the server has written down that they were."""
    store = cloche.server.services.sandboxes.store
    await until(lambda: told(cloche, sandbox_id) and (row := store.get(sandbox_id)) and row.known_as is None)
    return told(cloche, sandbox_id)


async def stats(cloche: Harness) -> dict[str, Any]:
    return dict((await cloche.client.get("/v1/pools/p")).json()["stats"])


async def test_a_create_is_served_from_the_pool_and_the_pool_is_filled_again(cloche: Harness) -> None:
    parked = await pool_with(cloche, 2)
    made = await create(cloche)
    assert made["id"] in parked
    assert made["origin"] == {"kind": "image", "id": None, "warm": True}
    again = await filled(cloche, 2)
    assert made["id"] not in again
    assert (await stats(cloche))["claims"] == 1


async def test_all_but_the_next_two_stand_still_until_there_is_time(cloche: Harness) -> None:
    parked = await pool_with(cloche, 4)
    paused = cloche.driver.paused
    assert len(paused) == 2
    made = [(await create(cloche))["id"] for _ in range(4)]
    assert set(made[:2]) <= set(parked) - paused
    for sandbox_id in made:
        assert len(await when_told(cloche, sandbox_id)) == 1
    assert not set(made) & paused


async def test_only_those_that_are_awake_are_asked_how_they_are(
    cloche: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    parked = await pool_with(cloche, 3)
    (frozen,) = cloche.driver.paused
    before = {one: len(cloche.driver.guests[one].requests) for one in parked}
    monkeypatch.setattr("cloche_server.pools._keeper.CHECK_EVERY_S", 0.05)
    asked = {one: cloche.driver.guests[one].requests for one in parked}
    await until(lambda: all(len(asked[one]) >= before[one] + 3 for one in parked if one != frozen))
    assert len(asked[frozen]) == before[frozen]
    assert await filled(cloche, 3) == parked
    assert cloche.driver.paused == {frozen}


async def test_what_is_parked_is_nobodys_and_counts_for_nobody(short_dir: Path) -> None:
    async with harness(short_dir, max_sandboxes_per_owner=2) as cloche:
        parked = await pool_with(cloche, 2)
        assert (await cloche.client.get("/v1/sandboxes")).json()["items"] == []
        for path in ("", "/contexts", "/usage"):
            assert (await cloche.client.get(f"/v1/sandboxes/{parked[0]}{path}")).status_code == 404
        assert (await cloche.client.delete(f"/v1/sandboxes/{parked[0]}")).status_code == 404
        made = await create(cloche)
        assert (await cloche.client.get(f"/v1/sandboxes/{made['id']}")).status_code == 200
        await create(cloche)
        refused = await cloche.client.post("/v1/sandboxes", json={})
        assert refused.json()["code"] == "limit_reached"
    await close_guests(cloche)


async def close_guests(cloche: Harness) -> None:
    for guest in list(cloche.driver.guests.values()):
        await guest.close()


async def test_everything_is_bound_late(cloche: Harness) -> None:
    (parked,) = await pool_with(cloche, 1)
    before = cloche.driver.specs[parked]
    wanted = {
        "name": "box",
        "env": {"TOKEN": "s3cret"},
        "labels": {"team": "x"},
        "metadata": {"n": 1},
        "lifecycle": {"max_lifetime_s": 100.0},
    }
    made = await create(cloche, **wanted)
    assert made["id"] == parked
    assert (made["name"], made["labels"], made["metadata"], made["env"]) == ("box", {"team": "x"}, {"n": 1}, ["TOKEN"])
    assert made["epoch"] != before.epoch
    (heard,) = await when_told(cloche, parked)
    assert (heard["env"], heard["epoch"], heard["reason"]) == ({"TOKEN": "s3cret"}, made["epoch"], "claim")
    assert len(heard["seed"]) == 64
    assert (await cloche.client.get("/v1/sandboxes/by-name/box")).json()["id"] == parked


async def test_a_claimed_sandbox_gets_its_full_life(cloche: Harness) -> None:
    """opensandbox#983: a pool handed out a sandbox with milliseconds left to live."""
    (parked,) = await pool_with(cloche, 1)
    sandboxes = cloche.server.services.sandboxes
    aged = sandboxes.store.get(parked)
    assert aged is not None
    sandboxes.registry.update(parked, **dict.fromkeys(("created_us", "started_us", "born_us", "active_us"), 1))
    made = await create(cloche, lifecycle={"max_lifetime_s": 100.0})
    assert made["id"] == parked
    row = sandboxes.store.get(parked)
    assert row is not None
    assert min(row.created_us, row.born_us, row.active_us, row.started_us or 0) >= aged.created_us
    assert made["lifetime"]["ends_at"] is not None


async def test_one_that_is_too_old_is_replaced_and_not_handed_out(cloche: Harness) -> None:
    (parked,) = await pool_with(cloche, 1)
    (pool,) = cloche.server.services.pools.all()
    next(iter(pool.stock.all())).since -= 3600
    made = await create(cloche)
    assert made["id"] != parked  # it is a cold one, or the one that came in its place meanwhile
    await until(lambda: parked in cloche.driver.destroyed)
    assert parked not in await filled(cloche, 1)


@pytest.mark.parametrize(
    "body",
    [
        {"warm": False},
        {"sudo": False},
        {"resources": {"memory_mb": 512}},
    ],
    ids=lambda body: next(iter(body)),
)
async def test_another_kind_of_sandbox_is_made_for_the_create(cloche: Harness, body: dict[str, Any]) -> None:
    parked = await pool_with(cloche, 1)
    assert (await create(cloche, **body))["origin"]["warm"] is False
    assert await filled(cloche, 1) == parked


async def test_a_pool_serves_its_owner_alone(cloche: Harness) -> None:
    async with cloche.client_of("ann") as ann, cloche.client_of("bob") as bob:
        parked = await pool_with(cloche, 1, ann)
        assert (await create(cloche, bob))["origin"]["warm"] is False
        assert (await bob.get("/v1/pools/p")).status_code == 404
        assert (await bob.get("/v1/pools")).json()["items"] == []
        made = await create(cloche, ann)
        assert (made["id"], made["owner"]) == (parked[0], "ann")


async def test_the_same_key_gets_the_same_sandbox(cloche: Harness) -> None:
    await pool_with(cloche, 2)
    post = cloche.client.post
    headers = {"Idempotency-Key": "k"}
    answers = await asyncio.gather(*(post("/v1/sandboxes", json={"name": "a"}, headers=headers) for _ in range(3)))
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert (await post("/v1/sandboxes", json={"name": "a"}, headers=headers)).json()["id"] == answers[0].json()["id"]
    other = await post("/v1/sandboxes", json={"name": "b"}, headers=headers)
    assert other.json()["code"] == "conflict"


async def test_a_name_in_use_is_a_conflict_and_the_sandbox_stays_ready(cloche: Harness) -> None:
    await create(cloche, name="box", warm=False)
    parked = await pool_with(cloche, 1)
    answer = await cloche.client.post("/v1/sandboxes", json={"name": "box", "env": {"A": "secret"}})
    assert answer.json()["code"] == "conflict"
    assert await filled(cloche, 1) == parked
    assert told(cloche, parked[0]) == []
    assert (await create(cloche))["id"] == parked[0]


async def test_many_at_once_get_as_many_different_ones(short_dir: Path) -> None:
    """While they were handed out, their places were counted twice, and some were removed as too many, claimed or not."""
    async with harness(short_dir, max_running=MANY + 1) as cloche:
        await pool_with(cloche, MANY, max=MANY)
        made = await asyncio.gather(*(create(cloche) for _ in range(MANY)))
        assert len({one["id"] for one in made}) == MANY
        assert all(one["origin"]["warm"] for one in made)
        answers = [await cloche.client.get(f"/v1/sandboxes/{one['id']}/contexts") for one in made]
        assert {answer.status_code for answer in answers} == {200}
        assert {one["id"] for one in made} <= cloche.driver.specs.keys()
    await close_guests(cloche)


def guest_raw(cloche: Harness, sandbox_id: str, raw: Any) -> None:
    cloche.driver.guests[sandbox_id].raw = raw


async def refuse(method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(http_answer(500, {"nonsense": True}))


@pytest.mark.expected_logs("sandbox ended")
async def test_one_that_ended_in_the_pool_is_replaced(cloche: Harness) -> None:
    """kubernetes-sigs/agent-sandbox#275: it counted as ready after its pod had been deleted."""
    (parked,) = await pool_with(cloche, 1)
    cloche.driver.end(parked, SandboxStatus(RunState.EXITED, ExitReason.OUT_OF_MEMORY, signal=9))
    await until(lambda: cloche.server.services.sandboxes.store.get(parked) is None)
    assert parked not in await filled(cloche, 1)
    assert (await create(cloche))["origin"]["warm"] is True


@pytest.mark.expected_logs("a ready sandbox is broken")
async def test_a_health_check_finds_a_broken_one(cloche: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche_server.pools._keeper.CHECK_EVERY_S", 0.05)
    (parked,) = await pool_with(cloche, 1)
    guest_raw(cloche, parked, refuse)
    await until(lambda: parked in cloche.driver.destroyed)
    assert parked not in await filled(cloche, 1)
    assert (await stats(cloche))["broken"] == 1


@pytest.mark.expected_logs("a pool could not be filled")
async def test_fills_that_fail_pause_and_then_go_on(cloche: Harness) -> None:
    cloche.driver.start_error = StorageFull("no space")
    await cloche.client.put("/v1/pools/p", json=IMAGE_POOL)
    (pool,) = cloche.server.services.pools.all()
    await until(lambda: pool.failures >= 1)
    pause = pool.not_before
    cloche.driver.start_error = None
    await filled(cloche, 2)
    assert pool.failures == 0
    assert pause > 0
    assert cloche.driver.specs.keys() == set(await filled(cloche, 2))


async def test_a_ready_one_has_been_through_a_run_and_was_told_nothing_new(cloche: Harness) -> None:
    """What a claim brings into use is in use before."""
    await pool_with(cloche, 1)
    ((sandbox_id, guest),) = cloche.driver.guests.items()
    row = cloche.server.services.sandboxes.store.get(sandbox_id)
    assert row is not None
    rehearsed = [(target, json.loads(body)) for _, target, _, body in guest.requests if body]
    assert ("/v1/warm-up", {"code": "1"}) in rehearsed
    identities = [body for target, body in rehearsed if target == "/v1/identity"]
    assert {(body["epoch"], body["reason"]) for body in identities} == {(row.epoch, None)}
    assert told(cloche, sandbox_id) == []


@pytest.mark.expected_logs("a ready sandbox is broken")
async def test_a_pool_whose_sandboxes_all_break_before_they_are_ready_pauses_too(
    cloche: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a broken guest in the image a core was busy for ever: the next sandbox was made at once."""
    whole = fake_guest.echo

    async def broken(method: str, target: str, *more: Any) -> None:
        await (refuse if target == "/v1/warm-up" else whole)(method, target, *more)

    monkeypatch.setattr(fake_guest, "echo", broken)
    await cloche.client.put("/v1/pools/p", json={"min": 1, "max": 1})
    (pool,) = cloche.server.services.pools.all()
    await until(lambda: pool.failures >= 2)
    assert pool.not_before > 0
    assert (await stats(cloche))["broken"] >= 2
    assert cloche.driver.guests.keys() <= set(cloche.driver.destroyed)
    monkeypatch.undo()
    await filled(cloche, 1)
    assert pool.failures == 0


async def test_a_pool_never_takes_more_than_the_server_may_have(short_dir: Path) -> None:
    async with harness(short_dir, max_running=3) as cloche:
        await create(cloche)
        await pool_with(cloche, 2, min=5, max=9)
        assert (await stats(cloche))["target"] == 2
        for _ in range(2):
            await create(cloche, warm=False)
        await until(lambda: len(cloche.driver.specs) == 3)  # the parked ones made room
        assert (await cloche.client.post("/v1/sandboxes", json={})).json()["code"] == "limit_reached"
    await close_guests(cloche)


async def test_deleting_a_pool_removes_what_is_in_it(cloche: Harness) -> None:
    await pool_with(cloche, 2)
    assert (await cloche.client.delete("/v1/pools/p")).status_code == 200
    assert cloche.driver.specs == {}
    assert (await cloche.client.get("/v1/pools/p")).status_code == 404
    assert (await create(cloche))["origin"]["warm"] is False


async def test_one_that_is_claimed_while_others_are_removed_stays(cloche: Harness) -> None:
    """The list of what to remove was made before, and what was claimed meanwhile was removed, too."""
    await pool_with(cloche, 3)
    (pool,) = cloche.server.services.pools.all()
    oldest = sorted(pool.stock.all(), key=lambda one: one.since)
    removing, go_on = asyncio.Event(), asyncio.Event()
    destroy = cloche.driver.destroy

    async def slowly(sandbox_id: str) -> None:
        removing.set()
        await go_on.wait()
        await destroy(sandbox_id)

    cloche.driver.destroy = slowly  # type: ignore[method-assign]
    await cloche.client.put("/v1/pools/p", json={"min": 0, "max": 0})
    await removing.wait()
    made = await create(cloche)
    assert made["id"] in {one.sandbox_id for one in oldest}
    go_on.set()
    await until(lambda: len(pool.stock) == 0 and len(cloche.driver.specs) == 1)
    assert (await cloche.client.get(f"/v1/sandboxes/{made['id']}/contexts")).status_code == 200


async def test_a_smaller_pool_gives_back_what_is_too_many(cloche: Harness) -> None:
    await pool_with(cloche, 3)
    await cloche.client.put("/v1/pools/p", json={"min": 1, "max": 1})
    await filled(cloche, 1)
    await until(lambda: len(cloche.driver.specs) == 1)


async def test_an_intent_raises_the_target_until_creates_have_come(cloche: Harness) -> None:
    await pool_with(cloche, 0, min=0)
    answer = await cloche.client.post("/v1/intents", json={"count": 2, "within_s": 60})
    assert (answer.status_code, answer.json()["pool"]) == (202, "p")
    await filled(cloche, 2)
    for _ in range(2):
        assert (await create(cloche))["origin"]["warm"] is True
    (pool,) = cloche.server.services.pools.all()
    assert pool.intents.count(asyncio.get_running_loop().time()) == 0


async def test_an_intent_that_no_pool_serves_makes_nothing_ready(cloche: Harness) -> None:
    assert (await cloche.client.post("/v1/intents", json={})).json()["pool"] is None
    assert (await cloche.client.post("/v1/intents", json={"image": "none"})).status_code == 404


async def test_what_is_ready_survives_a_restart(short_dir: Path) -> None:
    driver = FakeDriver()
    async with harness(short_dir, driver) as old:
        parked = await pool_with(old, 2)
    async with harness(short_dir, driver) as new:
        assert await filled(new, 2) == parked
        made = await create(new)
        assert made["id"] in parked
        assert made["origin"]["warm"] is True
    await close_guests(new)


async def test_after_a_restart_one_whose_context_was_not_started_is_removed(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was adopted without its context when a server ended in between, and handed out."""
    driver, begun = FakeDriver(), asyncio.Event()

    async def never(_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with harness(short_dir, driver) as old:
        (ready,) = await pool_with(old, 1)
        with monkeypatch.context() as patched:
            patched.setattr("cloche_server.pools._keeper.start_default_context", never)
            patched.setattr(SandboxWorkshop, "discard", as_if_killed)
            await old.client.put("/v1/pools/p", json={"min": 2, "max": 5})
            await asyncio.wait_for(begun.wait(), 60)
            (half,) = driver.specs.keys() - {ready}
            await old.server.services.pools.close()
    assert half in driver.specs
    async with harness(short_dir, driver) as new:
        await until(lambda: half in driver.destroyed)
        assert ready in await filled(new, 2)
    await close_guests(new)


async def as_if_killed(*_: object) -> None:
    """Nothing is cleaned up."""


async def test_one_that_was_killed_while_it_stood_still_is_not_handed_out(cloche: Harness) -> None:
    await pool_with(cloche, 3)
    (frozen,) = cloche.driver.paused
    cloche.driver.dying.add(frozen)
    made = [(await create(cloche, name=f"n{n}"))["id"] for n in range(2)]
    assert frozen not in made
    await until(lambda: frozen in cloche.driver.destroyed)
    assert (await create(cloche))["id"] != frozen


async def test_after_a_restart_what_belongs_to_no_pool_is_removed(short_dir: Path) -> None:
    driver = FakeDriver()
    async with harness(short_dir, driver) as old:
        (parked,) = await pool_with(old, 1)
        store = old.server.services.pools._store
        store.delete(store.all()[0])
    async with harness(short_dir, driver) as new:
        assert driver.specs == {}
        assert new.server.services.sandboxes.store.get(parked) is None


async def test_an_image_that_was_rebuilt_gives_another_stock(cloche: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    (parked,) = await pool_with(cloche, 1)
    images = cloche.server.services.images
    resolved = type(images.resolve("python"))
    monkeypatch.setattr(type(images), "resolve", lambda *_: resolved("python", digest="sha256:" + "1" * 64))
    await until(lambda: parked in cloche.driver.destroyed)
    assert parked not in await filled(cloche, 1)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"min": 3, "max": 2}, 400),
        ({"template": "t", "image": "python"}, 400),
        ({"template": "none"}, 404),
        ({"image": "none"}, 404),
        ({"min": 2, "max": 3}, 200),
    ],
)
async def test_a_pool_of_nothing_is_refused(cloche: Harness, body: dict[str, Any], status: int) -> None:
    assert (await cloche.client.put("/v1/pools/p", json=body)).status_code == status


async def test_viewers_look_and_change_nothing(cloche: Harness) -> None:
    async with cloche.client_of("ann", Role.VIEWER) as viewer:
        assert (await viewer.get("/v1/pools")).status_code == 200
        assert (await viewer.put("/v1/pools/p", json={})).status_code == 403
        assert (await viewer.post("/v1/intents", json={})).status_code == 403
