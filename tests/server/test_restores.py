"""Sandboxes from snapshots, and back to one in place, with a fake driver."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cloche.errors import SandboxStartFailed
from cloche.models import SandboxState
from cloche_server.drivers import SandboxSpec
from cloche_server.snapshots._restorer import _changes
from cloche_server.state import Database, SandboxStore

from .conftest import Harness, harness
from .saved import code_of, on_disk, snapshot, until

# From a snapshot


async def test_a_sandbox_from_a_snapshot_is_its_own(cloche: Harness) -> None:
    source = await cloche.sandbox(env={"A": "1", "B": "1"}, labels={"k": "v"}, resources={"memory_mb": 512})
    made = await snapshot(cloche, source)
    body = {"snapshot": made.id, "name": "child", "env": {"B": "2", "C": "3"}}
    child = (await cloche.client.post("/v1/sandboxes", json=body)).json()
    assert (child["env"], child["labels"], child["name"]) == (["A", "B", "C"], {}, "child")
    assert (child["resources"]["memory_mb"], child["parent"]) == (512, made.id)
    assert child["origin"] == {"kind": "snapshot", "id": made.id, "warm": False}
    spec: SandboxSpec = cloche.driver.specs[child["id"]]
    assert json.loads(spec.guest_env["CLOCHE_ENV"]) == {"A": "1", "B": "2", "C": "3"}
    identity = cloche.driver.guests[child["id"]].replies[-1].identity
    assert identity is not None
    assert (identity.sandbox_id, identity.reason, identity.env) == (child["id"], "fork", {"A": "1", "B": "2", "C": "3"})


@pytest.mark.parametrize("field", ["image", "driver", "resources", "sudo", "volumes"])
async def test_what_is_in_the_snapshot_cannot_be_chosen(cloche: Harness, field: str) -> None:
    values: dict[str, Any] = {
        "image": "python",
        "driver": "runc",
        "resources": {},
        "sudo": True,
        "volumes": [{"volume": "v", "path": "/data"}],
    }
    made = await snapshot(cloche, await cloche.sandbox())
    response = await cloche.client.post("/v1/sandboxes", json={"snapshot": made.id, field: values[field]})
    assert code_of(response) == "invalid_request"
    assert response.json()["details"]["errors"][0]["field"] == field
    assert (await cloche.client.post("/v1/sandboxes", json={"snapshot": made.id})).status_code == 201


async def test_an_environment_has_a_bound_with_what_is_there_already(cloche: Harness) -> None:
    source = await cloche.sandbox(env={f"A{n}": "" for n in range(1000)})
    made = await snapshot(cloche, source)
    for count, code in ((24, 201), (25, 400)):
        env = {f"B{n}": "" for n in range(count)}
        assert (await cloche.client.post("/v1/sandboxes", json={"snapshot": made.id, "env": env})).status_code == code
        forked = (await cloche.client.post(f"/v1/sandboxes/{source}/fork", json={"env": env})).json()["children"][0]
        assert (forked["error"] is None) is (code == 201)


async def test_an_idempotency_key_makes_one_sandbox_from_a_snapshot(cloche: Harness) -> None:
    made = await snapshot(cloche, await cloche.sandbox())
    answers = await asyncio.gather(
        *(
            cloche.client.post("/v1/sandboxes", json={"snapshot": made.id}, headers={"Idempotency-Key": "k"})
            for _ in range(3)
        )
    )
    assert len({answer.json()["id"] for answer in answers}) == 1


async def test_files_alone_of_saved_memory_end_everything_before_anybody_sees_it(cloche: Harness) -> None:
    made = await snapshot(cloche, await cloche.sandbox(), memory=False)
    assert not made.memory
    child = (await cloche.client.post("/v1/sandboxes", json={"snapshot": made.id})).json()["id"]
    assert "/v1/end-all" in [request[1] for request in cloche.driver.guests[child].requests]
    with_memory = await snapshot(cloche, await cloche.sandbox())
    child = (await cloche.client.post("/v1/sandboxes", json={"snapshot": with_memory.id})).json()["id"]
    assert "/v1/end-all" not in [request[1] for request in cloche.driver.guests[child].requests]


# Restore in place


async def test_a_restore_keeps_the_sandbox_and_begins_a_new_life(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox(name="box", labels={"k": "v"})
    before = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()
    made = await snapshot(cloche, sandbox_id)
    response = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/restore", json={"snapshot": made.id})
    after = response.json()
    assert (after["id"], after["name"], after["labels"], after["state"]) == (sandbox_id, "box", {"k": "v"}, "running")
    assert (after["parent"], after["epoch"] != before["epoch"]) == (made.id, True)
    identity = cloche.driver.guests[sandbox_id].replies[-1].identity
    assert identity is not None
    assert (identity.reason, identity.epoch) == ("restore", after["epoch"])
    assert list((cloche.settings.data_dir / "suspended").iterdir()) == []
    assert on_disk(cloche) == [made.id]


async def test_a_restore_that_fails_leaves_the_sandbox_at_the_snapshot(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    made = await snapshot(cloche, sandbox_id)
    cloche.driver.start_error = SandboxStartFailed("no", details={"output": "words"})
    response = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/restore", json={"snapshot": made.id})
    assert code_of(response) == "sandbox_start_failed"
    row = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()
    assert (row["state"], row["parent"]) == ("suspended", made.id)
    cloche.driver.start_error = None
    assert (await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/resume")).json()["state"] == "running"
    assert (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")).status_code == 200
    assert on_disk(cloche) == [made.id]


@pytest.mark.parametrize("action", ["pause", "suspend", "stop"])
async def test_a_sandbox_at_rest_is_rolled_back_and_runs(cloche: Harness, action: str) -> None:
    sandbox_id = await cloche.sandbox()
    made = await snapshot(cloche, sandbox_id)
    await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{action}")
    response = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/restore", json={"snapshot": made.id})
    assert (response.status_code, response.json()["state"]) == (200, "running")
    assert list((cloche.settings.data_dir / "suspended").iterdir()) == []


@pytest.mark.parametrize("old_life", [True, False], ids=["old life still there", "old life ended"])
async def test_a_server_that_died_while_it_rolled_back_finishes_it(short_dir: Path, old_life: bool) -> None:
    async with harness(short_dir) as cloche:
        sandbox_id = await cloche.sandbox()
        made = await snapshot(cloche, sandbox_id)
        driver = cloche.driver
        snapshots = cloche.server.services.snapshots
        snapshot_row = snapshots.library.store.get(made.id)
        assert snapshot_row is not None
        row = cloche.server.services.sandboxes.registry.known(sandbox_id)
        await asyncio.to_thread(snapshots._restorer._put_aside, sandbox_id, snapshots.library.files.directory(made.id))
    database = Database.open(cloche.settings.database_path)
    SandboxStore(database).update(row, state=SandboxState.RESTORING, **_changes(snapshot_row))
    database.close()
    if not old_life:
        await driver.destroy(sandbox_id)
    async with harness(short_dir, driver) as cloche:
        assert (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == "suspended"
        assert sandbox_id not in driver.specs
        assert [path.name for path in (cloche.settings.data_dir / "suspended").iterdir()] == [sandbox_id]
        assert (await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/resume")).json()["state"] == "running"
        assert (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")).status_code == 200
        for guest in list(driver.guests.values()):
            await guest.close()


async def test_a_delete_ends_a_restore(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    made = await snapshot(cloche, sandbox_id)
    cloche.driver.no_guest = True  # the new life never says hello
    restoring = asyncio.create_task(
        cloche.client.post(f"/v1/sandboxes/{sandbox_id}/restore", json={"snapshot": made.id})
    )
    await until(lambda: sandbox_id in cloche.driver.destroyed and sandbox_id in cloche.driver.specs)
    assert (await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")).status_code == 200
    assert code_of(await restoring) == "gone"
    assert list((cloche.settings.data_dir / "suspended").iterdir()) == []
    assert on_disk(cloche) == [made.id]
