"""Pools of an image: with a driver, resources and sudo of their own, for every owner, and over a rebuild of the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloche.models import Role
from cloche_server.state import Database, PoolStore

from .conftest import Harness, harness
from .fake_driver import FakeDriver, FakeImage, FakeImages
from .test_pools import close_guests, create, filled, pool_with, until

SMALL = {"resources": {"memory_mb": 512, "cpus": 1}, "sudo": False}


async def test_a_pool_serves_the_creates_that_want_what_it_is_of(cloche: Harness) -> None:
    parked = await pool_with(cloche, 1, **SMALL)
    shown = (await cloche.client.get("/v1/pools/p")).json()
    assert (shown["resources"]["memory_mb"], shown["sudo"], shown["driver"], shown["shared"]) == (
        512,
        False,
        None,
        False,
    )
    assert not (await create(cloche))["origin"]["warm"]
    assert not (await create(cloche, **{**SMALL, "sudo": True}))["origin"]["warm"]
    made = await create(cloche, **SMALL, env={"A": "1"})
    assert (made["id"], made["origin"]["warm"], made["resources"]["memory_mb"]) == (parked[0], True, 512)
    assert (made["sudo"], made["env"]) == (False, ["A"])


async def test_a_pool_that_is_changed_is_filled_anew(cloche: Harness) -> None:
    before = await pool_with(cloche, 1)
    await pool_with(cloche, 1, **SMALL)
    await until(lambda: before[0] in cloche.driver.destroyed)
    assert (await filled(cloche, 1)) != before
    assert (await create(cloche, **SMALL))["origin"]["warm"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"template": "t", "driver": "runc"}, "driver"),
        ({"template": "t", "resources": {}}, "resources"),
        ({"template": "t", "sudo": True}, "sudo"),
        ({"template": "t", "image": "python"}, "image"),
        ({"template": "t", "shared": True}, "shared"),
        ({"min": 3, "max": 1}, "min"),
    ],
)
async def test_what_a_pool_cannot_be_is_refused(cloche: Harness, body: dict[str, Any], field: str) -> None:
    answer = await cloche.client.put("/v1/pools/p", json=body)
    assert (answer.status_code, answer.json()["details"]["errors"][0]["field"]) == (400, field)
    assert (await cloche.client.put("/v1/pools/p", json={"driver": "runc", "min": 0})).status_code == 200


async def test_a_driver_that_does_not_work_is_said(cloche: Harness) -> None:
    answer = await cloche.client.put("/v1/pools/p", json={"driver": "gvisor"})
    assert answer.json()["code"] == "driver_unavailable"


async def test_a_shared_pool_serves_every_owner_and_what_it_gives_is_theirs(cloche: Harness) -> None:
    parked = await pool_with(cloche, 1, shared=True)
    async with cloche.client_of("other") as other:
        assert [pool["name"] for pool in (await other.get("/v1/pools")).json()["items"]] == ["p"]
        assert (await other.get("/v1/pools/p")).json()["owner"] == "admin"
        assert (await other.post("/v1/intents", json={})).json()["pool"] == "p"
        made = await create(cloche, other, name="mine")
        assert (made["id"], made["owner"], made["origin"]["warm"]) == (parked[0], "other", True)
        assert [box["id"] for box in (await other.get("/v1/sandboxes")).json()["items"]] == parked
        assert (await other.delete("/v1/pools/p")).status_code == 404
        assert (await other.delete(f"/v1/sandboxes/{made['id']}")).status_code == 200
    async with cloche.client_of("third") as third:
        assert (await third.get(f"/v1/sandboxes/{parked[0]}")).status_code == 404


async def test_the_limit_of_sandboxes_is_the_claimers_own(short_dir: Path) -> None:
    async with harness(short_dir, max_sandboxes_per_owner=1) as cloche:
        await pool_with(cloche, 2, shared=True)
        async with cloche.client_of("other") as other:
            assert (await create(cloche, other))["origin"]["warm"]
            assert (await other.post("/v1/sandboxes", json={})).json()["code"] == "limit_reached"
        assert (await create(cloche))["origin"]["warm"]
    await close_guests(cloche)


async def test_only_admins_share_pools_and_others_serve_their_owner_alone(cloche: Harness) -> None:
    async with cloche.client_of("other", Role.MEMBER) as other:
        refused = await other.put("/v1/pools/p", json={"shared": True})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        await pool_with(cloche, 1, other)
        assert not (await create(cloche))["origin"]["warm"]
        assert (await create(cloche, other))["origin"]["warm"]


async def test_an_owners_own_pool_goes_before_a_shared_one(cloche: Harness) -> None:
    await pool_with(cloche, 2, shared=True)
    async with cloche.client_of("other") as other:
        assert (await other.put("/v1/pools/own", json={"min": 1})).status_code == 200
        await filled(cloche, 3)
        assert (await create(cloche, other))["origin"]["warm"]
        assert (await other.get("/v1/pools/own")).json()["stats"]["claims"] == 1


async def test_an_image_that_is_rebuilt_replaces_the_ready_ones_and_creates_get_the_new(
    cloche: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await pool_with(cloche, 2)
    rebuilt = FakeImage("python", digest="sha256:" + "1" * 64)
    monkeypatch.setattr(FakeImages, "resolve", lambda *_: rebuilt)
    made = [await create(cloche) for _ in range(2)]
    assert {each["image_digest"] for each in made} == {rebuilt.digest}
    assert {each["id"] for each in made}.isdisjoint(old)
    await until(lambda: set(old) <= set(cloche.driver.destroyed))
    ready = await filled(cloche, 2)
    warm = await create(cloche)
    assert (warm["id"] in ready, warm["image_digest"], warm["origin"]["warm"]) == (True, rebuilt.digest, True)


async def test_what_a_pool_is_of_is_known_to_the_next_server(short_dir: Path) -> None:
    driver = FakeDriver()
    async with harness(short_dir, driver) as first:
        await pool_with(first, 0, shared=True, driver="runc", **SMALL)
        shown = (await first.client.get("/v1/pools/p")).json()
    database = Database.open(first.settings.database_path)
    assert [row.resources and row.resources["memory_mb"] for row in PoolStore(database).all()] == [512]
    database.close()
    async with harness(short_dir, driver) as second:
        assert (await second.client.get("/v1/pools/p")).json() == shown
