"""Forks, with a fake driver."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cloche.errors import SandboxStartFailed, StorageFull

from .conftest import Harness, harness
from .saved import code_of, on_disk, until


async def test_children_are_many_and_each_is_its_own(cloche: Harness) -> None:
    source = await cloche.sandbox(env={"A": "1"}, labels={"k": "v"}, metadata={"m": 1})
    body = {
        "count": 5,
        "names": [f"c{i}" for i in range(5)],
        "env": {"B": "1"},
        "envs": [{"N": str(i)} for i in range(5)],
    }
    response = await cloche.client.post(f"/v1/sandboxes/{source}/fork", json=body)
    assert response.status_code == 201, response.text
    children = [child["sandbox"] for child in response.json()["children"]]
    assert [child["name"] for child in children] == body["names"]
    assert all(child["labels"] == {"k": "v"} and child["metadata"] == {"m": 1} for child in children)
    assert all(child["origin"] == {"kind": "fork", "id": source, "warm": False} for child in children)
    seeds = set()
    for index, child in enumerate(children):
        identity = cloche.driver.guests[child["id"]].replies[-1].identity
        assert identity is not None
        assert identity.env == {"A": "1", "B": "1", "N": str(index)}
        seeds.add(identity.seed)
    assert len(seeds) == 5
    assert len({child["epoch"] for child in children}) == 5
    await until(lambda: on_disk(cloche) == [])
    assert (await cloche.client.get(f"/v1/sandboxes/{source}")).json()["state"] == "running"


async def test_each_child_has_its_own_outcome(cloche: Harness) -> None:
    source = await cloche.sandbox()
    await cloche.sandbox(name="taken")
    body = {"count": 3, "names": ["a", "taken", "b"], "labels": {}}
    result = (await cloche.client.post(f"/v1/sandboxes/{source}/fork", json=body)).json()
    good = [child["sandbox"] is not None for child in result["children"]]
    assert good == [True, False, True]
    assert result["children"][1]["error"]["code"] == "conflict"
    cloche.driver.start_error = SandboxStartFailed("no", details={"output": ""})
    result = (await cloche.client.post(f"/v1/sandboxes/{source}/fork", json={"count": 2})).json()
    assert [child["error"]["code"] for child in result["children"]] == ["sandbox_start_failed"] * 2
    await until(lambda: on_disk(cloche) == [])


async def test_limits_hold_for_children_too(short_dir: Path) -> None:
    async with harness(short_dir, max_sandboxes=3) as cloche:
        source = await cloche.sandbox()
        result = (await cloche.client.post(f"/v1/sandboxes/{source}/fork", json={"count": 4})).json()
        errors = [child["error"]["code"] for child in result["children"] if child["error"]]
        assert errors == ["limit_reached"] * 2
        assert code_of(await cloche.client.post(f"/v1/sandboxes/{source}/fork", json={})) == "limit_reached"
        for guest in list(cloche.driver.guests.values()):
            await guest.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("names", ["a"]),
        ("envs", [{}, {}, {}]),
        ("names", ["a", "no name"]),
        ("envs", [{}, {"=": ""}]),
        ("env", {"": ""}),
    ],
)
async def test_lists_are_good_and_one_for_each_child(cloche: Harness, field: str, value: list[Any]) -> None:
    source = await cloche.sandbox()
    response = await cloche.client.post(f"/v1/sandboxes/{source}/fork", json={"count": 2, field: value})
    assert code_of(response) == "invalid_request"
    assert response.json()["details"]["errors"][0]["field"].startswith(field)
    assert cloche.driver.checkpoints == []


async def test_children_begin_while_their_source_is_being_saved(cloche: Harness) -> None:
    source = await cloche.sandbox()
    cloche.driver.may_save = asyncio.Event()
    forking = asyncio.create_task(cloche.client.post(f"/v1/sandboxes/{source}/fork", json={"count": 2}))
    await until(lambda: len(cloche.driver.ahead) == 2)
    assert not forking.done()
    assert not cloche.driver.checkpoints
    cloche.driver.may_save.set()
    children = (await forking).json()["children"]
    assert sorted(child["sandbox"]["id"] for child in children) == sorted(cloche.driver.ahead)


async def test_a_save_that_fails_leaves_no_child(cloche: Harness) -> None:
    source = await cloche.sandbox()
    cloche.driver.may_save = asyncio.Event()
    cloche.driver.checkpoint_error = StorageFull("the disk is full")
    forking = asyncio.create_task(cloche.client.post(f"/v1/sandboxes/{source}/fork", json={"count": 2}))
    await until(lambda: len(cloche.driver.ahead) == 2)
    cloche.driver.may_save.set()
    assert code_of(await forking) == "storage_full"
    assert [item["id"] for item in (await cloche.client.get("/v1/sandboxes")).json()["items"]] == [source]
    assert list(cloche.driver.specs) == [source]
    assert set(cloche.driver.ahead) <= set(cloche.driver.destroyed)
    await until(lambda: on_disk(cloche) == [])


async def test_a_source_that_is_deleted_while_it_is_saved_leaves_no_child(cloche: Harness) -> None:
    source = await cloche.sandbox()
    cloche.driver.may_save = asyncio.Event()
    forking = asyncio.create_task(cloche.client.post(f"/v1/sandboxes/{source}/fork", json={"count": 2}))
    await until(lambda: len(cloche.driver.ahead) == 2)
    assert (await cloche.client.delete(f"/v1/sandboxes/{source}")).status_code == 200
    assert (await forking).status_code >= 400
    assert cloche.driver.specs == {}
    assert (await cloche.client.get("/v1/sandboxes")).json()["items"] == []


async def test_a_fork_goes_on_when_its_client_goes_away(cloche: Harness) -> None:
    source = await cloche.sandbox()
    cloche.driver.may_save = asyncio.Event()
    forking = asyncio.create_task(cloche.client.post(f"/v1/sandboxes/{source}/fork", json={"count": 3}))
    await until(lambda: len(cloche.driver.ahead) == 3)
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking
    cloche.driver.may_save.set()
    await until(lambda: len(cloche.driver.specs) == 4 and on_disk(cloche) == [])
    assert len((await cloche.client.get("/v1/sandboxes")).json()["items"]) == 4
