"""Templates on a real server with a fake driver: versions, failures, references, and what a server's end leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloche.errors import SandboxStartFailed, SnapshotFailed
from cloche.models import TemplateCreate
from cloche_server.state import TemplateRow

from .conftest import Harness, harness
from .fake_driver import FakeDriver
from .test_pools import close_guests, create, filled, until


async def build(cloche: Harness, query: str = "", **body: Any) -> httpx.Response:
    return await cloche.client.post(f"/v1/templates{query}", json={"name": "t", **body})


async def built(cloche: Harness, **body: Any) -> dict[str, Any]:
    answer = await build(cloche, **body)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


async def test_a_build_leaves_a_snapshot_and_no_sandbox(cloche: Harness) -> None:
    made = await built(cloche)
    assert (made["version"], made["state"], made["failure"]) == (1, "ready", None)
    assert cloche.driver.specs == {}
    snapshot = (await cloche.client.get(f"/v1/snapshots/{made['snapshot_id']}")).json()
    assert (snapshot["template"], snapshot["state"], snapshot["memory"]) == ("t@1", "ready", True)
    assert (await cloche.client.delete(f"/v1/snapshots/{made['snapshot_id']}")).json()["code"] == "conflict"
    assert "== snapshot" in (await cloche.client.get("/v1/templates/t/log")).json()["text"]


async def test_the_same_inputs_give_the_same_version_and_others_the_next(cloche: Harness) -> None:
    first = await built(cloche)
    assert await built(cloche) == first
    assert len(cloche.driver.checkpoints) == 1
    assert (await built(cloche, env={"A": "1"}))["version"] == 2
    assert (await built(cloche))["version"] == 1
    listed = (await cloche.client.get("/v1/templates")).json()["items"]
    assert [(one["name"], one["version"]) for one in listed] == [("t", 2), ("t", 1)]
    assert (await cloche.client.get("/v1/templates/t")).json()["version"] == 2
    assert (await cloche.client.get("/v1/templates/t@1")).json()["version"] == 1


async def test_lists_are_of_one_name_or_owner(cloche: Harness) -> None:
    await built(cloche)
    async with cloche.client_of("other") as other:
        for name in ("t", "u"):
            assert (await other.post("/v1/templates", json={"name": name})).status_code == 201
        assert len((await other.get("/v1/templates")).json()["items"]) == 2
        refused = await other.get("/v1/templates?owner=admin")
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert (await other.get("/v1/pools?owner=admin")).status_code == 403
        assert (await other.get("/v1/pools?owner=other")).json()["items"] == []

    async def listed(query: str) -> list[tuple[str, str]]:
        items = (await cloche.client.get(f"/v1/templates{query}")).json()["items"]
        return [(item["owner"], item["name"]) for item in items]

    assert await listed("") == [("admin", "t"), ("other", "t"), ("other", "u")]
    assert await listed("?name=t") == [("admin", "t"), ("other", "t")]
    assert await listed("?owner=other&name=u") == [("other", "u")]


async def test_an_admin_reads_and_deletes_what_is_anothers_by_owner_and_name(cloche: Harness) -> None:
    templates, pools = "/v1/templates/t", "/v1/pools/p"
    async with cloche.client_of("other") as other:
        assert (await other.post("/v1/templates", json={"name": "t"})).status_code == 201
        assert (await other.put(pools, json={"template": "t", "min": 0})).status_code == 200
        await built(cloche, env={"MINE": "1"})
        for path in (templates, f"{templates}/log", f"{templates}/events", pools):
            assert (await other.get(path, params={"owner": "other"})).status_code == 200
            refused = await other.get(path, params={"owner": "admin"})
            assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert (await cloche.client.delete(pools)).status_code == 404
    assert (await cloche.client.get(f"{templates}?owner=other")).json()["spec"]["env"] == {}
    assert (await cloche.client.get(templates)).json()["spec"]["env"] == {"MINE": ""}
    used = await cloche.client.delete(f"{templates}?owner=other")
    assert (used.status_code, used.json()["details"]["pools"]) == (409, ["p"])
    for path in (pools, templates):
        assert (await cloche.client.delete(f"{path}?owner=other")).json()["owner"] == "other"
    assert (await cloche.client.get(templates)).json()["state"] == "ready"


async def test_an_owner_has_so_many_pools(short_dir: Path) -> None:
    async with harness(short_dir, max_pools_per_owner=1) as cloche:
        body = {"min": 0}
        assert (await cloche.client.put("/v1/pools/p", json=body)).status_code == 200
        full = await cloche.client.put("/v1/pools/q", json=body)
        assert (full.status_code, full.json()["code"]) == (429, "limit_reached")
        assert full.json()["details"] == {"limit": 1, "count": 1}
        assert (await cloche.client.put("/v1/pools/p", json={**body, "max": 3})).status_code == 200
        async with cloche.client_of("other") as other:
            assert (await other.put("/v1/pools/q", json=body)).status_code == 200
        await cloche.client.delete("/v1/pools/p")
        assert (await cloche.client.put("/v1/pools/q", json=body)).status_code == 200


async def test_many_that_ask_for_one_build_share_it(cloche: Harness) -> None:
    answers = await asyncio.gather(*(build(cloche) for _ in range(5)))
    assert {answer.json()["version"] for answer in answers} == {1}
    assert len(cloche.driver.checkpoints) == 1


async def test_nobody_has_to_wait(cloche: Harness) -> None:
    answer = await build(cloche, "?wait=false")
    assert (answer.status_code, answer.json()["state"]) == (202, "building")
    waited = await cloche.client.get("/v1/templates/t?wait_s=30")
    assert (waited.status_code, waited.json()["state"]) == (200, "ready")


@pytest.mark.expected_logs("did not start", "checkpoint", "could not")
@pytest.mark.parametrize("step", ["start", "snapshot"])
async def test_a_step_that_fails_is_said_and_tried_again(cloche: Harness, step: str) -> None:
    if step == "start":
        cloche.driver.start_error = SandboxStartFailed("no room for it", details={"output": ""})
    else:
        cloche.driver.checkpoint_error = SnapshotFailed("the disk said no", details={"output": ""})
    answer = await build(cloche)
    error = answer.json()
    assert (answer.status_code, error["code"]) == (422, "template_build_failed")
    assert (error["details"]["step"], error["details"]["version"]) == (step, 1)
    assert "failed: " in error["details"]["log"]
    assert (await cloche.client.get("/v1/templates/t")).json()["state"] == "failed"
    refused = await cloche.client.post("/v1/sandboxes", json={"template": "t"})
    assert (refused.status_code, refused.json()["details"]["state"]) == (409, "failed")
    assert cloche.driver.specs == {}
    cloche.driver.start_error = cloche.driver.checkpoint_error = None
    assert ((await built(cloche))["version"], cloche.driver.specs) == (1, {})


async def test_a_sandbox_of_a_template_is_what_it_says_and_what_the_create_adds(cloche: Harness) -> None:
    await built(cloche, env={"A": "1", "B": "1"}, resources={"memory_mb": 512}, sudo=False)
    made = await create(cloche, template="t", env={"B": "2"}, name="box")
    assert (made["env"], made["resources"]["memory_mb"], made["sudo"]) == (["A", "B"], 512, False)
    assert made["origin"] == {"kind": "template", "id": "t@1", "warm": False}
    row = cloche.server.services.sandboxes.store.get(made["id"])
    assert row is not None
    assert row.env == {"A": "1", "B": "2"}
    assert cloche.driver.guests[made["id"]].replies[0].reborn


@pytest.mark.parametrize(
    "more",
    [
        {"image": "python"},
        {"sudo": True},
        {"resources": {}},
        {"driver": "runc"},
        {"snapshot": "s"},
        {"volumes": [{"volume": "v", "path": "/data"}]},
    ],
    ids=lambda more: next(iter(more)),
)
async def test_what_a_template_says_cannot_be_said_again(cloche: Harness, more: dict[str, Any]) -> None:
    await built(cloche)
    answer = await cloche.client.post("/v1/sandboxes", json={"template": "t", **more})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    assert (await create(cloche, template="t@1", driver=None))["state"] == "running"


@pytest.mark.parametrize(("reference", "status"), [("none", 404), ("t@2", 404), ("t@1", 201), ("t", 201)])
async def test_references(cloche: Harness, reference: str, status: int) -> None:
    await built(cloche)
    assert (await cloche.client.post("/v1/sandboxes", json={"template": reference})).status_code == status


async def test_a_deleted_version_is_gone_with_its_snapshot_and_its_number(cloche: Harness) -> None:
    made = await built(cloche)
    assert (await cloche.client.delete("/v1/templates/t@1")).json()["state"] == "deleted"
    assert (await cloche.client.get("/v1/templates/t@1")).status_code == 410
    assert (await cloche.client.get("/v1/templates/t")).status_code == 404
    assert (await cloche.client.get(f"/v1/snapshots/{made['snapshot_id']}")).status_code == 410
    assert (await cloche.client.get("/v1/templates")).json()["items"] == []
    assert (await built(cloche))["version"] == 2


async def test_a_bare_name_deletes_every_version(cloche: Harness) -> None:
    await built(cloche)
    await built(cloche, env={"A": "1"})
    assert (await cloche.client.delete("/v1/templates/t")).status_code == 200
    assert (await cloche.client.get("/v1/templates/t@1")).status_code == 410
    assert (await cloche.client.get("/v1/templates/t@2")).status_code == 410


async def test_one_that_a_pool_needs_stays(cloche: Harness) -> None:
    await built(cloche)
    await cloche.client.put("/v1/pools/p", json={"template": "t", "min": 1})
    (parked,) = await filled(cloche, 1)
    assert (await cloche.client.delete("/v1/templates/t")).json()["code"] == "conflict"
    made = await create(cloche, template="t", env={"A": "1"})
    assert (made["id"], made["origin"]["warm"]) == (parked, True)
    await cloche.client.delete("/v1/pools/p")
    assert (await cloche.client.delete("/v1/templates/t")).status_code == 200


async def test_a_new_version_replaces_what_is_ready(cloche: Harness) -> None:
    await built(cloche)
    await cloche.client.put("/v1/pools/p", json={"template": "t", "min": 1})
    (parked,) = await filled(cloche, 1)
    await built(cloche, env={"A": "1"})
    await until(lambda: parked in cloche.driver.destroyed)
    await filled(cloche, 1)
    made = await create(cloche, template="t")
    assert (made["origin"]["id"], made["origin"]["warm"]) == ("t@2", True)


async def test_templates_belong_to_owners(cloche: Harness) -> None:
    await built(cloche, env={"A": "secret"})
    async with cloche.client_of("ann") as ann:
        assert (await ann.get("/v1/templates/t")).status_code == 404
        assert (await ann.get("/v1/templates")).json()["items"] == []
        assert (await ann.post("/v1/sandboxes", json={"template": "t"})).status_code == 404
        mine = (await ann.post("/v1/templates", json={"name": "t"})).json()
        assert (mine["owner"], mine["version"]) == ("ann", 1)
    assert "secret" not in (await cloche.client.get("/v1/templates/t")).text


async def test_a_build_that_the_end_of_the_server_interrupted_has_failed(short_dir: Path) -> None:
    driver = FakeDriver()
    async with harness(short_dir, driver) as old:
        row = TemplateRow("admin", "t", 1, "building", TemplateCreate(name="t"), "d", created_us=1)
        old.server.services.templates._store.insert(row)
    async with harness(short_dir, driver) as new:
        answer = (await new.client.get("/v1/templates/t")).json()
        assert (answer["state"], "interrupted" in answer["failure"]) == ("failed", True)


@pytest.mark.expected_logs("did not start")
async def test_a_server_that_ends_gives_its_builds_up(short_dir: Path) -> None:
    driver = FakeDriver(no_guest=True)
    async with harness(short_dir, driver) as old:
        assert (await build(old, "?wait=false")).status_code == 202
        await until(lambda: len(driver.specs) == 1)
    assert driver.specs == {}
    async with harness(short_dir, FakeDriver()) as new:
        answer = (await new.client.get("/v1/templates/t")).json()
        assert (answer["state"], "interrupted" in answer["failure"]) == ("failed", True)
        await close_guests(new)


async def test_a_deleted_build_stops(cloche: Harness) -> None:
    cloche.driver.no_guest = True
    assert (await build(cloche, "?wait=false")).status_code == 202
    await until(lambda: len(cloche.driver.specs) == 1)
    assert (await cloche.client.delete("/v1/templates/t")).json()["state"] == "deleted"
    assert cloche.driver.specs == {}


async def test_an_owner_has_a_bounded_number_of_builds(cloche: Harness) -> None:
    cloche.driver.no_guest = True
    answers = [await build(cloche, "?wait=false", env={"N": str(n)}) for n in range(9)]
    assert [answer.status_code for answer in answers] == [202] * 8 + [429]
    await cloche.client.delete("/v1/templates/t")


# Following a build


def events_of(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(id, event, data) of each event."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in fields:
            found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
    return found


async def test_a_build_is_followed_to_its_end_and_read_again_from_any_place(cloche: Harness) -> None:
    assert (await build(cloche, "?wait=false")).status_code == 202
    whole = await cloche.client.get("/v1/templates/t/events")
    assert (whole.status_code, whole.headers["content-type"]) == (200, "text/event-stream")
    events = events_of(whole.text)
    assert [kind for _, kind, _ in events][-1:] == ["finished"]
    assert events[-1][2] == {"template": "t@1", "state": "ready", "failure": None}
    printed = "".join(data["text"] for _, kind, data in events if kind == "output")
    assert printed == (await cloche.client.get("/v1/templates/t/log")).json()["text"]
    for cursor, _, _ in events:
        again = await cloche.client.get("/v1/templates/t@1/events", headers={"Last-Event-ID": cursor})
        rest = events_of(again.text)
        assert rest[-1] == events[-1]
        assert "".join(data.get("text", "") for _, _, data in rest[:-1]) == printed[int(cursor.rsplit(".", 1)[1]) :]


@pytest.mark.expected_logs("checkpoint", "could not")
async def test_a_build_that_is_tried_again_is_another_stream(cloche: Harness) -> None:
    cloche.driver.checkpoint_error = SnapshotFailed("the disk said no", details={"output": ""})
    await build(cloche)
    failed = events_of((await cloche.client.get("/v1/templates/t/events")).text)
    assert failed[-1][2]["state"] == "failed"
    assert "the disk said no" in failed[-1][2]["failure"]
    cloche.driver.checkpoint_error = None
    await built(cloche)
    old = await cloche.client.get("/v1/templates/t/events", params={"cursor": failed[-1][0]})
    assert (old.status_code, old.json()["code"]) == (409, "foreign_cursor")
    assert events_of((await cloche.client.get("/v1/templates/t/events")).text)[-1][2]["state"] == "ready"


@pytest.mark.parametrize(
    ("cursor", "code"),
    [("x", "malformed_cursor"), ("a.0.0", "foreign_cursor"), ("{epoch}.0.99999", "cursor_beyond_head")],
)
async def test_a_cursor_that_cannot_be_is_refused(cloche: Harness, cursor: str, code: str) -> None:
    await built(cloche)
    last = events_of((await cloche.client.get("/v1/templates/t/events")).text)[-1][0]
    answer = await cloche.client.get(
        "/v1/templates/t/events", params={"cursor": cursor.format(epoch=last.split(".")[0])}
    )
    assert answer.json()["code"] == code


async def test_a_follower_of_a_build_that_is_deleted_is_told_so_and_one_that_leaves_is_forgotten(
    cloche: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = asyncio.Event()

    async def slow(_: Any) -> None:
        await held.wait()

    monkeypatch.setattr("cloche_server.templates._steps.start_default_context", slow)
    assert (await build(cloche, "?wait=false", contexts=[{}])).status_code == 202
    log = cloche.server.services.templates._logs["admin", "t", 1]
    async with cloche.client.stream("GET", "/v1/templates/t@1/events") as leaving:
        async for line in leaving.aiter_lines():
            if "== context" in line:
                break
    await until(lambda: not log.listeners)
    following = asyncio.create_task(cloche.client.get("/v1/templates/t@1/events"))
    await until(lambda: bool(log.listeners))
    assert (await cloche.client.delete("/v1/templates/t@1")).status_code == 200
    last = events_of((await following).text)[-1]
    assert (last[1], last[2]["template"]) == ("finished", "t@1")
    assert last[2]["state"] in ("failed", "deleted")
    assert (await cloche.client.head("/v1/templates/t@1/events")).status_code == 405
    assert (await cloche.client.get("/v1/templates/t@1/events")).status_code == 410
