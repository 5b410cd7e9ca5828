"""Snapshots through the API, with a fake driver: names, trees, retention, failures."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cloche.errors import InternalError, SandboxNotRunning, StorageFull
from cloche.models import Role, SnapshotTree
from cloche_server.drivers import ExitReason, RunState, SandboxStatus
from cloche_server.snapshots._manifest import MANIFEST

from .conftest import Harness, harness
from .fake_driver import CHECKPOINT_FILE, FakeDriver
from .saved import code_of, exported, listed, on_disk, snapshot, until

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


@pytest.mark.expected_logs("sandbox ended")
async def test_one_that_ends_while_it_is_saved_leaves_no_socket(cloche: Harness) -> None:
    """The server listened for its guest again, in a directory that nobody removed any more, and waited for it."""
    sandbox_id = await cloche.sandbox()
    guest, cloche.driver.may_save = cloche.driver.guests[sandbox_id], asyncio.Event()
    cloche.driver.checkpoint_error = SandboxNotRunning("it ended")
    saving = asyncio.create_task(cloche.client.post(f"/v1/sandboxes/{sandbox_id}/snapshots", json={}))
    await until(lambda: guest.requests[-1][1] == "/v1/uplinks/close")
    cloche.driver.end(sandbox_id, SandboxStatus(RunState.EXITED, ExitReason.EXIT, exit_code=3))
    await until(lambda: sandbox_id in cloche.driver.destroyed)
    cloche.driver.may_save.set()
    assert code_of(await saving) == "sandbox_not_running"
    assert list(cloche.settings.uplinks_dir.iterdir()) == []
    assert (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == "failed"


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
