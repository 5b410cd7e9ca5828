"""Snapshots through the API, with a fake driver: names, trees, retention, failures, restores, forks, imports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloche.errors import ErrorBody, InternalError, SandboxStartFailed, StorageFull
from cloche.models import Role, SandboxState, Snapshot, SnapshotTree
from cloche_server.drivers import SandboxSpec
from cloche_server.snapshots._manifest import MANIFEST
from cloche_server.snapshots._restorer import _changes
from cloche_server.state import Database, SandboxStore

from .conftest import Harness, harness
from .fake_driver import CHECKPOINT_FILE, FakeDriver
from .fake_guest import echo, http_answer


def code_of(response: httpx.Response) -> str:
    return ErrorBody.model_validate_json(response.content).code


async def snapshot(cloche: Harness, sandbox_id: str, **body: Any) -> Snapshot:
    response = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/snapshots", json=body)
    assert response.status_code == 201, response.text
    return Snapshot.model_validate_json(response.content)


def on_disk(cloche: Harness) -> list[str]:
    return sorted(path.name for path in (cloche.settings.data_dir / "snapshots").iterdir())


async def listed(client: httpx.AsyncClient, query: str = "") -> list[str]:
    response = await client.get(f"/v1/snapshots{query}")
    assert response.status_code == 200, response.text
    return [item["id"] for item in response.json()["items"]]


async def until(condition: Callable[[], bool], bound_s: float = 30) -> None:
    async with asyncio.timeout(bound_s):
        while not condition():
            await asyncio.sleep(0.01)


# Saving


async def test_a_snapshot_says_what_it_is_and_its_source_goes_on(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox(env={"SECRET": "hush"})
    made = await snapshot(cloche, sandbox_id, name="first", labels={"k": "v"})
    assert (made.name, made.state, made.memory, made.sandbox_id, made.parent) == (
        "first",
        "ready",
        True,
        sandbox_id,
        None,
    )
    assert made.digest is not None
    assert made.size_bytes > 0
    assert "hush" not in made.model_dump_json()
    sandbox = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()
    assert (sandbox["state"], sandbox["parent"]) == ("running", made.id)
    assert (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")).status_code == 200
    assert on_disk(cloche) == [made.id]
    assert sorted(path.name for path in (cloche.settings.data_dir / "snapshots" / made.id).iterdir()) == [
        CHECKPOINT_FILE,
        MANIFEST,
    ]


async def test_snapshots_are_found_by_id_name_sandbox_and_label_in_pages(cloche: Harness) -> None:
    one, other = await cloche.sandbox(), await cloche.sandbox()
    first = await snapshot(cloche, one, name="first", labels={"team": "x"})
    second = await snapshot(cloche, one)
    third = await snapshot(cloche, other, labels={"team": "y"})
    for reference in (first.id, "first"):
        assert (await cloche.client.get(f"/v1/snapshots/{reference}")).json()["id"] == first.id
    assert await listed(cloche.client) == [third.id, second.id, first.id]
    assert await listed(cloche.client, f"?sandbox={one}") == [second.id, first.id]
    assert await listed(cloche.client, "?label=team%3Dx") == [first.id]
    assert await listed(cloche.client, "?name=first") == [first.id]
    page = (await cloche.client.get(f"/v1/sandboxes/{one}/snapshots?limit=1")).json()
    assert [item["id"] for item in page["items"]] == [second.id]
    rest = (await cloche.client.get(f"/v1/sandboxes/{one}/snapshots?limit=1&page={page['next_page']}")).json()
    assert ([item["id"] for item in rest["items"]], rest["next_page"]) == ([first.id], None)


async def test_names_are_one_owners_and_never_look_like_ids(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    first = await snapshot(cloche, sandbox_id, name="n")
    url = f"/v1/sandboxes/{sandbox_id}/snapshots"
    assert code_of(await cloche.client.post(url, json={"name": "n"})) == "conflict"
    for bad in (first.id, "import"):
        assert code_of(await cloche.client.post(url, json={"name": bad})) == "invalid_request"
    async with cloche.client_of("ann") as ann:
        theirs = (await ann.post("/v1/sandboxes", json={})).json()["id"]
        assert (await ann.post(f"/v1/sandboxes/{theirs}/snapshots", json={"name": "n"})).status_code == 201
    assert (await cloche.client.delete("/v1/snapshots/n")).status_code == 200
    assert (await snapshot(cloche, sandbox_id, name="n")).id != first.id


async def test_what_belongs_to_others_looks_as_if_it_were_not_there(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    made = await snapshot(cloche, sandbox_id, name="mine")
    async with cloche.client_of("ann") as ann, cloche.client_of("admin", Role.VIEWER) as viewer:
        own = (await ann.post("/v1/sandboxes", json={})).json()["id"]
        assert await listed(ann) == []
        for response in (
            await ann.get(f"/v1/snapshots/{made.id}"),
            await ann.get("/v1/snapshots/mine"),
            await ann.delete(f"/v1/snapshots/{made.id}"),
            await ann.get(f"/v1/snapshots/{made.id}/export"),
            await ann.post(f"/v1/sandboxes/{own}/restore", json={"snapshot": made.id}),
            await ann.post("/v1/sandboxes", json={"snapshot": made.id}),
            await ann.post("/v1/compare", json={"before": made.id, "after": own}),
            await ann.post(f"/v1/sandboxes/{sandbox_id}/snapshots", json={}),
            await ann.post(f"/v1/sandboxes/{sandbox_id}/fork", json={}),
            await ann.get(f"/v1/sandboxes/{sandbox_id}/snapshots/tree"),
        ):
            assert (response.status_code, code_of(response)) == (404, "not_found")
        assert await listed(viewer) == [made.id]
        for method, path in (("DELETE", ""), ("GET", "/export")):
            assert code_of(await viewer.request(method, f"/v1/snapshots/{made.id}{path}")) == "forbidden"


async def test_memory_where_there_is_none_is_refused_and_files_are_not(short_dir: Path) -> None:
    driver = FakeDriver(capabilities=frozenset({"file_snapshot"}))
    async with harness(short_dir, driver) as cloche:
        sandbox_id = await cloche.sandbox()
        url = f"/v1/sandboxes/{sandbox_id}"
        for path, body in (("snapshots", {"memory": True}), ("fork", {})):
            response = await cloche.client.post(f"{url}/{path}", json=body)
            assert (response.status_code, code_of(response)) == (409, "unsupported_capability")
        for memory in (None, False):
            assert not (await snapshot(cloche, sandbox_id, memory=memory)).memory
        forked = await cloche.client.post(f"{url}/fork", json={"memory": False})
        assert forked.json()["children"][0]["sandbox"]["state"] == "running"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageFull("the disk is full"), "storage_full"),
        (InternalError("no", details={"output": "x"}), "snapshot_failed"),
    ],
)
@pytest.mark.expected_logs("could not be saved")
async def test_a_snapshot_that_fails_leaves_nothing_and_its_name_is_free(
    cloche: Harness, error: Exception, code: str
) -> None:
    sandbox_id = await cloche.sandbox()
    cloche.driver.checkpoint_error = error
    for path, body in (("snapshots", {"name": "n"}), ("fork", {"count": 2})):
        response = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{path}", json=body)
        assert code_of(response) == code
    assert on_disk(cloche) == []
    assert await listed(cloche.client) == []
    cloche.driver.checkpoint_error = None
    sandbox = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()
    assert (sandbox["state"], sandbox["parent"]) == ("running", None)
    assert (await snapshot(cloche, sandbox_id, name="n")).parent is None


async def test_a_full_disk_while_the_snapshot_is_finished_leaves_nothing(
    cloche: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = await cloche.sandbox()

    def full(*_: object) -> None:
        raise StorageFull("the server's disk is full")

    monkeypatch.setattr("cloche_server.snapshots._files.SnapshotFiles.publish", full)
    assert code_of(await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/snapshots", json={})) == "storage_full"
    assert on_disk(cloche) == []
    monkeypatch.undo()
    assert (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["parent"] is None
    await snapshot(cloche, sandbox_id)


async def test_a_sandbox_at_rest_is_saved_without_waking(cloche: Harness) -> None:
    for action, memory in (("pause", True), ("suspend", True), ("stop", False)):
        sandbox_id = await cloche.sandbox()
        before = (await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{action}")).json()["state"]
        made = await snapshot(cloche, sandbox_id)
        assert made.memory is memory
        assert (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == before
        child = await cloche.client.post("/v1/sandboxes", json={"snapshot": made.id})
        assert child.status_code == 201, child.text
    refused = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/snapshots", json={"memory": True})
    assert code_of(refused) == "unsupported_capability"


# Tree, retention, deleting


async def test_snapshots_descend_from_what_the_sandbox_was_last(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    one = await snapshot(cloche, sandbox_id)
    two = await snapshot(cloche, sandbox_id)
    await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/restore", json={"snapshot": one.id})
    three = await snapshot(cloche, sandbox_id)

    async def lines() -> list[tuple[str, str | None, int]]:
        raw = await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/snapshots/tree")
        nodes = SnapshotTree.model_validate_json(raw.content).nodes
        return [(node.snapshot.id, node.parent, node.depth) for node in nodes]

    assert await lines() == [(one.id, None, 0), (two.id, one.id, 1), (three.id, one.id, 1)]
    deleted = await cloche.client.delete(f"/v1/snapshots/{one.id}")
    assert (deleted.status_code, deleted.json()["state"]) == (200, "deleted")
    assert await lines() == [(two.id, None, 0), (three.id, None, 0)]
    assert (await cloche.client.get(f"/v1/snapshots/{two.id}")).json()["parent"] == one.id
    for response in (
        await cloche.client.get(f"/v1/snapshots/{one.id}"),
        await cloche.client.delete(f"/v1/snapshots/{one.id}"),
        await cloche.client.post("/v1/sandboxes", json={"snapshot": one.id}),
    ):
        assert (response.status_code, code_of(response)) == (410, "gone")
    assert on_disk(cloche) == sorted([two.id, three.id])


async def test_older_snapshots_of_a_series_are_replaced(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    keep = {"keep_last": 2}
    made = [await snapshot(cloche, sandbox_id, name=f"nightly-{day}", retention=keep) for day in range(4)]
    other = await snapshot(cloche, sandbox_id, name="release", retention={"keep_last": 1})
    assert await listed(cloche.client) == [other.id, made[3].id, made[2].id]


async def test_a_snapshot_whose_time_is_over_goes(cloche: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox_id = await cloche.sandbox()
    kept = await snapshot(cloche, sandbox_id)
    over = await snapshot(cloche, sandbox_id, retention={"ttl_s": 3600})
    assert over.expires_at is not None
    library = cloche.server.services.snapshots.library
    assert await library.remove_expired() == []
    monkeypatch.setattr(library, "clock", lambda: int(over.expires_at.timestamp() * 1e6) + 1)
    assert await library.remove_expired() == [over.id]
    assert await listed(cloche.client) == [kept.id]
    assert on_disk(cloche) == [kept.id]


async def test_a_delete_waits_for_who_starts_from_it(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    made = await snapshot(cloche, sandbox_id)
    library = cloche.server.services.snapshots.library
    row = library.store.get(made.id)
    assert row is not None
    async with library.using(row) as directory:
        deleting = asyncio.create_task(cloche.client.delete(f"/v1/snapshots/{made.id}"))
        await asyncio.sleep(0.1)
        assert not deleting.done()
        assert directory.is_dir()
    assert (await deleting).status_code == 200
    assert not directory.exists()


# Broken


@pytest.mark.expected_logs("a snapshot is broken")
async def test_a_snapshot_that_was_changed_is_refused_and_stays_listed(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    made = await snapshot(cloche, sandbox_id)
    file = cloche.settings.data_dir / "snapshots" / made.id / CHECKPOINT_FILE
    good = file.read_bytes()
    file.write_bytes(good[:-1] + b"#")
    epoch = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["epoch"]
    for response in (
        await cloche.client.post("/v1/sandboxes", json={"snapshot": made.id}),
        await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/restore", json={"snapshot": made.id}),
        await cloche.client.get(f"/v1/snapshots/{made.id}/export"),
    ):
        assert (response.status_code, code_of(response)) == (409, "snapshot_broken")
        assert response.json()["details"]["file"] == CHECKPOINT_FILE
    now = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()
    assert (now["state"], now["epoch"]) == ("running", epoch)
    assert (await cloche.client.get(f"/v1/snapshots/{made.id}")).json()["state"] == "broken"
    assert await listed(cloche.client) == [made.id]
    file.write_bytes(good)
    assert (await cloche.client.post("/v1/sandboxes", json={"snapshot": made.id})).status_code == 201
    assert (await cloche.client.get(f"/v1/snapshots/{made.id}")).json()["state"] == "ready"


@pytest.mark.expected_logs("the directory of a snapshot is gone")
async def test_a_new_server_removes_what_is_half_made_and_marks_what_is_gone(short_dir: Path) -> None:
    async with harness(short_dir) as cloche:
        sandbox_id = await cloche.sandbox()
        good, gone, half = [await snapshot(cloche, sandbox_id, name=name) for name in ("good", "gone", "half")]
        library = cloche.server.services.snapshots.library
        root = cloche.settings.data_dir / "snapshots"
        (root / gone.id).rename(root / "strange")
        row = library.store.get(half.id)
        assert row is not None
        library.store.update(row, state="creating")
        (root / "fork-1.tmp").mkdir()
        driver = cloche.driver
    async with harness(short_dir, driver) as cloche:
        assert on_disk(cloche) == [good.id]
        states = {item["id"]: item["state"] for item in (await cloche.client.get("/v1/snapshots")).json()["items"]}
        assert states == {good.id: "ready", gone.id: "broken"}
        assert (await cloche.client.post("/v1/sandboxes", json={"snapshot": good.id})).status_code == 201
        await snapshot(cloche, sandbox_id, name="half")
        for guest in list(driver.guests.values()):
            await guest.close()


async def test_an_owner_has_so_many_snapshots(short_dir: Path) -> None:
    async with harness(short_dir, max_snapshots_per_owner=2) as cloche:
        sandbox_id = await cloche.sandbox()
        made = [await snapshot(cloche, sandbox_id) for _ in range(2)]
        archive = await exported(cloche.client, made[0].id)
        for response in (
            await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/snapshots", json={}),
            await cloche.client.post("/v1/snapshots/import", content=archive),
        ):
            assert code_of(response) == "limit_reached"
        await cloche.client.delete(f"/v1/snapshots/{made[0].id}")
        await snapshot(cloche, sandbox_id)
        for guest in list(cloche.driver.guests.values()):
            await guest.close()


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


# Forks


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
    forking = asyncio.create_task(cloche.client.post(f"/v1/sandboxes/{source}/fork", json={"count": 3}))
    await until(lambda: bool(cloche.driver.checkpoints))
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking
    await until(lambda: len(cloche.driver.specs) == 4 and on_disk(cloche) == [])
    assert len((await cloche.client.get("/v1/sandboxes")).json()["items"]) == 4


# Out and in


async def exported(client: httpx.AsyncClient, reference: str) -> bytes:
    response = await client.get(f"/v1/snapshots/{reference}/export")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-tar")
    return response.content


async def pieces(data: bytes, step: int = 700) -> AsyncIterator[bytes]:
    for start in range(0, len(data), step):
        yield data[start : start + step]


async def test_an_archive_comes_back_as_a_snapshot(cloche: Harness) -> None:
    source = await cloche.sandbox(env={"A": "1"})
    made = await snapshot(cloche, source, name="out")
    archive = await exported(cloche.client, "out")
    response = await cloche.client.post("/v1/snapshots/import?name=in", content=pieces(archive))
    assert response.status_code == 201, response.text
    back = Snapshot.model_validate_json(response.content)
    assert (back.name, back.state, back.digest, back.sandbox_id, back.memory) == (
        "in",
        "ready",
        made.digest,
        None,
        True,
    )
    child = await cloche.client.post("/v1/sandboxes", json={"snapshot": "in"})
    assert child.json()["env"] == ["A"]


async def test_members_import_what_this_server_wrote_and_nothing_else(cloche: Harness) -> None:
    made = await snapshot(cloche, await cloche.sandbox())
    archive = await exported(cloche.client, made.id)
    changed = archive.replace(b'"memory_mb":2048', b'"memory_mb":4096', 1)
    assert changed != archive
    async with cloche.client_of("ann") as ann:
        good = await ann.post("/v1/snapshots/import", content=archive)
        assert (good.status_code, good.json()["owner"]) == (201, "ann")
        response = await ann.post("/v1/snapshots/import", content=changed)
        assert (response.status_code, code_of(response)) == (403, "forbidden")
    assert (await cloche.client.post("/v1/snapshots/import", content=changed)).status_code == 201
    await until(lambda: len(on_disk(cloche)) == 3)


async def test_imports_that_are_not_what_they_say_leave_nothing(cloche: Harness) -> None:
    made = await snapshot(cloche, await cloche.sandbox(), name="n")
    archive = await exported(cloche.client, made.id)
    content = (cloche.settings.data_dir / "snapshots" / made.id / CHECKPOINT_FILE).read_bytes()
    assert archive.count(content) == 1
    wrong = archive.replace(content, content[:-1] + b"#")
    unknown = archive.replace(b"sha256:" + b"0" * 64, b"sha256:" + b"9" * 64)
    url = "/v1/snapshots/import"
    for body, code in (
        (wrong, "snapshot_broken"),
        (unknown, "not_found"),
        (b"x" * 2048, "invalid_request"),
        (b"", "invalid_request"),
    ):
        response = await cloche.client.post(url, content=body)
        assert code_of(response) == code, response.text
    assert code_of(await cloche.client.post(f"{url}?name=n", content=archive)) == "conflict"
    assert (await cloche.client.post(f"{url}?name=m", content=archive)).status_code == 201
    await until(lambda: len(on_disk(cloche)) == 2)


async def test_a_client_that_goes_away_in_the_middle_of_an_import_leaves_nothing(cloche: Harness) -> None:
    made = await snapshot(cloche, await cloche.sandbox())
    archive = await exported(cloche.client, made.id)

    async def half() -> AsyncIterator[bytes]:
        yield archive[: len(archive) // 2]
        await until(lambda: len(on_disk(cloche)) == 2)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await cloche.client.post("/v1/snapshots/import", content=half())
    await until(lambda: on_disk(cloche) == [made.id])
    assert await listed(cloche.client) == [made.id]


# Compare


def comparing(files: dict[str, str], variables: list[dict[str, Any]]) -> Any:
    """A guest with these files (path -> SHA-256, or what a word is) and variables."""

    async def raw(method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        if target.startswith("/v1/files/hashes"):
            lines = "".join(json.dumps([path, word]) + "\n" for path, word in files.items())
            writer.write(http_answer(200, lines.encode(), "application/x-ndjson"))
        elif target == "/v1/variables/summary":
            writer.write(http_answer(200, {"variables": variables, "truncated": False}))
        elif target == "/v1/contexts":
            writer.write(http_answer(200, {"items": [CONTEXT], "next_page": None}))
        else:
            await echo(method, target, headers, body, writer)

    return raw


CONTEXT = {
    **{"id": "default", "name": None, "language": "python", "cwd": "/workspace", "env": [], "limits": {}},
    **{"restart_policy": "on_death", "interrupt_grace_s": 5, "state": "idle", "generation": 1, "execution_count": 0},
    **{"queue": [], "created_at": "2026-01-01T00:00:00Z", "last_activity_at": "2026-01-01T00:00:00Z", "failure": None},
}


async def test_two_sandboxes_are_compared_by_what_their_guests_say(cloche: Harness) -> None:
    before, after = await cloche.sandbox(), await cloche.sandbox()
    value = {"name": "x", "type": "int", "summary": "1", "digest": "d"}
    cloche.driver.guests[before].raw = comparing({"a": "directory", "b": "fifo"}, [value])
    cloche.driver.guests[after].raw = comparing({"a": "directory"}, [{**value, "summary": "2", "digest": "e"}])
    response = await cloche.client.post("/v1/compare", json={"before": before, "after": after})
    assert response.status_code == 200, response.text
    found = response.json()
    assert [(file["path"], file["change"]) for file in found["files"]] == [("b", "removed")]
    assert [(one["name"], one["before"]["summary"], one["after"]["summary"]) for one in found["variables"]] == [
        ("x", "1", "2")
    ]


@pytest.mark.parametrize("line", ['["a"]', "{}", "nonsense", '["a\\u0000", "x"]', '[1, "x"]', '["\\ud800", "x"]'])
async def test_a_guest_that_lists_nonsense_is_found_out(cloche: Harness, line: str) -> None:
    before, after = await cloche.sandbox(), await cloche.sandbox()

    async def raw(method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        if target.startswith("/v1/files/hashes"):
            writer.write(http_answer(200, line.encode(), "application/x-ndjson"))
        else:
            await echo(method, target, headers, body, writer)

    for sandbox_id in (before, after):
        cloche.driver.guests[sandbox_id].raw = raw
    response = await cloche.client.post("/v1/compare", json={"before": before, "after": after})
    assert (response.status_code, code_of(response)) == (502, "guest_fault")


async def test_a_snapshot_is_compared_out_of_sight(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    made = await snapshot(cloche, sandbox_id)
    cloche.driver.raw = comparing({}, [])
    cloche.driver.guests[sandbox_id].raw = comparing({}, [])
    response = await cloche.client.post("/v1/compare", json={"before": made.id, "after": sandbox_id})
    assert response.json() == {"files": [], "variables": [], "truncated": False}
    assert list(cloche.driver.specs) == [sandbox_id]
    assert [item["id"] for item in (await cloche.client.get("/v1/sandboxes")).json()["items"]] == [sandbox_id]
