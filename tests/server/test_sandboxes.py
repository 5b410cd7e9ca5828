"""Sandboxes through the API: made, found, listed, changed, deleted, and what happens when any of it goes wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from cloche.errors import ErrorBody, SandboxStartFailed
from cloche.models import Role, Sandbox
from cloche_server.drivers import ExitReason, RunState, SandboxStatus
from cloche_server.state import SandboxFilter

from .conftest import Harness, harness
from .fake_driver import FakeDriver


def code_of(response: httpx.Response) -> str:
    return ErrorBody.model_validate_json(response.content).code


def nothing_left(cloche: Harness) -> None:
    assert cloche.driver.specs == {}
    assert list(cloche.settings.uplinks_dir.iterdir()) == []
    rows, _ = cloche.server.services.sandboxes.list(SandboxFilter(), 200, None)
    assert rows == []


async def test_a_sandbox_says_what_it_is_and_hides_the_values_of_its_env(cloche: Harness) -> None:
    body = {
        "name": "box",
        "env": {"B": "secret", "A": "1"},
        "labels": {"team": "x"},
        "metadata": {"deep": [1]},
        "resources": {"cpus": 1.5, "memory_mb": 512},
        "sudo": False,
    }
    response = await cloche.client.post("/v1/sandboxes", json=body)
    assert response.status_code == 201
    made = Sandbox.model_validate_json(response.content)
    assert response.headers["Location"] == f"/v1/sandboxes/{made.id}"
    assert (made.state, made.owner, made.name, made.driver, made.env) == ("running", "admin", "box", "runc", ["A", "B"])
    assert (made.resources.cpus, made.resources.memory_mb, made.sudo) == (1.5, 512, False)
    assert made.started_at is not None
    assert "secret" not in response.text
    for path in (f"/v1/sandboxes/{made.id}", "/v1/sandboxes/by-name/box"):
        assert Sandbox.model_validate_json((await cloche.client.get(path)).content) == made
    spec = cloche.driver.specs[made.id]
    assert spec.sudo is False
    assert spec.guest_env["CLOCHE_ENV"] == '{"B": "secret", "A": "1"}'
    identity = cloche.driver.guests[made.id].replies[0].identity
    assert identity is not None
    assert identity.env == {"A": "1", "B": "secret"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"image": "nope"}, "not_found"),
        ({"driver": "gvisor"}, "driver_unavailable"),
        ({"resources": {"cpus": 0}}, "invalid_request"),
    ],
)
async def test_what_cannot_be_made_leaves_nothing(cloche: Harness, body: dict[str, object], code: str) -> None:
    response = await cloche.client.post("/v1/sandboxes", json=body | {"name": "box"})
    assert code_of(response) == code
    nothing_left(cloche)
    if code == "not_found":
        assert response.json()["hint"] == "cloche image build nope"


async def test_a_start_that_fails_leaves_nothing_and_frees_name_and_key(cloche: Harness) -> None:
    """e2b-dev/E2B#1498: a create that failed late left a sandbox running."""
    cloche.driver.start_error = SandboxStartFailed("runc said no", details={"output": "no such cgroup"})
    request = {"json": {"name": "box"}, "headers": {"Idempotency-Key": "k"}}
    response = await cloche.client.post("/v1/sandboxes", **request)  # type: ignore[arg-type]
    assert code_of(response) == "sandbox_start_failed"
    assert response.json()["details"] == {"output": "no such cgroup"}
    assert response.json()["retryable"] is True
    nothing_left(cloche)
    cloche.driver.start_error = None
    assert (await cloche.client.post("/v1/sandboxes", **request)).status_code == 201  # type: ignore[arg-type]


@pytest.mark.expected_logs("sandbox did not start")
async def test_a_driver_that_breaks_is_a_failed_start(cloche: Harness) -> None:
    cloche.driver.start_error = RuntimeError("boom")
    response = await cloche.client.post("/v1/sandboxes", json={})
    assert code_of(response) == "sandbox_start_failed"
    nothing_left(cloche)


async def test_a_guest_that_never_says_hello_is_a_failed_start(cloche: Harness) -> None:
    cloche.driver.no_guest, cloche.driver.hello_bound_s = True, 0.1
    assert code_of(await cloche.client.post("/v1/sandboxes", json={})) == "sandbox_start_failed"
    assert len(cloche.driver.destroyed) == 1
    nothing_left(cloche)


@pytest.mark.expected_logs("sandbox did not start")
async def test_a_start_is_bounded(short_dir: Path) -> None:
    class Hanging(FakeDriver):
        async def start(self, *_: object, **__: object) -> None:  # type: ignore[override]
            await asyncio.sleep(3600)

    async with harness(short_dir, Hanging(), start_timeout_s=0.1) as cloche:
        response = await cloche.client.post("/v1/sandboxes", json={})
        assert code_of(response) == "sandbox_start_failed"
        assert "0.1 s" in response.json()["message"]
        nothing_left(cloche)


async def test_names_are_unique_for_an_owner_and_free_after_delete(cloche: Harness) -> None:
    first = await cloche.sandbox(name="box")
    clash = await cloche.client.post("/v1/sandboxes", json={"name": "box"})
    assert code_of(clash) == "conflict"
    async with cloche.client_of("bob") as bob:
        assert (await bob.post("/v1/sandboxes", json={"name": "box"})).status_code == 201
    await cloche.client.delete(f"/v1/sandboxes/{first}")
    assert await cloche.sandbox(name="box") != first


async def test_deleted_means_gone_for_ever(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox(env={"A": "secret"})
    deleted = await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")
    assert (deleted.status_code, deleted.json()["state"]) == (200, "deleted")
    for method, path in (("GET", ""), ("DELETE", ""), ("PATCH", ""), ("GET", "/contexts"), ("POST", "/contexts")):
        response = await cloche.client.request(method, f"/v1/sandboxes/{sandbox_id}{path}", json={} if path else None)
        assert code_of(response) == "gone", (method, path)
    stored = cloche.server.services.sandboxes.store.get(sandbox_id)
    assert stored is not None
    assert stored.env == {"A": ""}
    listed = (await cloche.client.get("/v1/sandboxes?state=deleted")).json()["items"]
    assert [item["id"] for item in listed] == [sandbox_id]
    assert cloche.driver.specs == {}
    assert list(cloche.settings.uplinks_dir.iterdir()) == []


async def test_two_deletes_at_once_delete_once(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    answers = await asyncio.gather(*(cloche.client.delete(f"/v1/sandboxes/{sandbox_id}") for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 410, 410, 410]
    assert cloche.driver.destroyed == [sandbox_id]


@pytest.mark.expected_logs("could not be removed")
async def test_a_delete_that_hangs_is_bounded_and_can_be_repeated(
    cloche: Harness,
) -> None:
    sandbox_id = await cloche.sandbox()
    limits = cloche.server.services.sandboxes._limits
    usual_s = limits.destroy_timeout_s
    object.__setattr__(limits, "destroy_timeout_s", 0.1)
    cloche.driver.destroy_hangs = True
    assert code_of(await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")) == "internal"
    assert (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == "running"
    cloche.driver.destroy_hangs = False
    object.__setattr__(limits, "destroy_timeout_s", usual_s)
    assert (await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")).status_code == 200


async def test_a_delete_ends_a_create_under_way(cloche: Harness) -> None:
    cloche.driver.no_guest = True
    making = asyncio.create_task(cloche.client.post("/v1/sandboxes", json={"name": "box"}))
    async with asyncio.timeout(30):
        while not cloche.driver.specs:
            await asyncio.sleep(0.005)
    [sandbox_id] = cloche.driver.specs
    deleted = await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")
    assert deleted.json()["state"] == "deleted"
    assert code_of(await making) == "gone"
    nothing_left(cloche)


async def test_foreign_sandboxes_look_as_if_they_did_not_exist(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox(name="box")
    async with cloche.client_of("bob") as bob:
        for method, path in (
            *(("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/contexts"), ("POST", "/contexts")),
            ("GET", "/contexts/default/events"),
        ):
            foreign = await bob.request(
                method, f"/v1/sandboxes/{sandbox_id}{path}", json={} if method != "GET" else None
            )
            unknown = await bob.request(method, f"/v1/sandboxes/{'x' * 20}{path}", json={} if method != "GET" else None)
            assert code_of(foreign) == code_of(unknown) == "not_found"
        assert code_of(await bob.get("/v1/sandboxes/by-name/box")) == "not_found"
        assert (await bob.get("/v1/sandboxes")).json() == {"items": [], "next_page": None}
        assert code_of(await bob.get("/v1/sandboxes?owner=admin")) == "forbidden"


async def test_an_admin_sees_all_owners(cloche: Harness) -> None:
    mine = await cloche.sandbox()
    async with cloche.client_of("bob") as bob:
        theirs = (await bob.post("/v1/sandboxes", json={})).json()["id"]
    ids = [item["id"] for item in (await cloche.client.get("/v1/sandboxes")).json()["items"]]
    assert ids == [theirs, mine]
    ids = [item["id"] for item in (await cloche.client.get("/v1/sandboxes?owner=bob")).json()["items"]]
    assert ids == [theirs]
    assert (await cloche.client.get(f"/v1/sandboxes/{theirs}")).status_code == 200


async def test_lists_are_filtered_and_paged(cloche: Harness) -> None:
    made = [await cloche.sandbox(labels={"n": str(n % 2)}) for n in range(5)]
    first = (await cloche.client.get("/v1/sandboxes?limit=3")).json()
    second = (await cloche.client.get("/v1/sandboxes", params={"limit": 3, "page": first["next_page"]})).json()
    assert [item["id"] for item in [*first["items"], *second["items"]]] == made[::-1]
    assert second["next_page"] is None
    odd = (await cloche.client.get("/v1/sandboxes?label=n=1&state=running")).json()["items"]
    assert [item["id"] for item in odd] == [made[3], made[1]]
    assert code_of(await cloche.client.get("/v1/sandboxes?page=garbage")) == "invalid_request"


async def test_update_changes_what_is_given(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox(name="a", labels={"x": "1"}, metadata={"m": 1})
    await cloche.sandbox(name="b")
    url = f"/v1/sandboxes/{sandbox_id}"
    changed = (await cloche.client.patch(url, json={"labels": {"y": "2"}})).json()
    assert (changed["name"], changed["labels"], changed["metadata"]) == ("a", {"y": "2"}, {"m": 1})
    assert (await cloche.client.patch(url, json={})).json() == changed
    assert code_of(await cloche.client.patch(url, json={"name": "b"})) == "conflict"
    assert (await cloche.client.patch(url, json={"name": "c"})).json()["name"] == "c"
    assert (await cloche.client.get(url)).json()["name"] == "c"


async def test_a_name_can_be_taken_away_and_is_free_then(cloche: Harness) -> None:
    url = f"/v1/sandboxes/{await cloche.sandbox(name='a', labels={'x': '1'})}"
    changed = (await cloche.client.patch(url, json={"name": None, "labels": None})).json()
    assert (changed["name"], changed["labels"]) == (None, {"x": "1"})
    await cloche.sandbox(name="a")
    assert code_of(await cloche.client.patch(url, json={"name": "a"})) == "conflict"


async def test_one_key_makes_one_sandbox(cloche: Harness) -> None:
    """cloudflare/sandbox-sdk#794: concurrent creates of one sandbox left orphans."""
    headers = {"Idempotency-Key": "once please"}
    answers = await asyncio.gather(
        *(cloche.client.post("/v1/sandboxes", json={"name": "box"}, headers=headers) for _ in range(5))
    )
    assert {answer.status_code for answer in answers} == {201}
    [sandbox_id] = {answer.json()["id"] for answer in answers}
    again = await cloche.client.post("/v1/sandboxes", content=b'{"sudo": true, "name": "box"}', headers=headers)
    assert again.json()["id"] == sandbox_id
    other = await cloche.client.post("/v1/sandboxes", json={}, headers=headers)
    assert code_of(other) == "conflict"
    async with cloche.client_of("bob") as bob:
        assert (await bob.post("/v1/sandboxes", json={}, headers=headers)).status_code == 201
    await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")
    assert code_of(await cloche.client.post("/v1/sandboxes", json={"name": "box"}, headers=headers)) == "gone"


@pytest.mark.expected_logs("did not start")
async def test_a_key_whose_create_failed_is_free_again_for_any_body(cloche: Harness) -> None:
    headers = {"Idempotency-Key": "k"}
    cloche.driver.start_error = SandboxStartFailed("no room for it", details={"output": ""})
    failed = await cloche.client.post("/v1/sandboxes", json={"name": "box"}, headers=headers)
    assert code_of(failed) == "sandbox_start_failed"
    cloche.driver.start_error = None
    assert (await cloche.client.post("/v1/sandboxes", json={"name": "other"}, headers=headers)).status_code == 201


@pytest.mark.parametrize("key", ["", "x" * 129, "tab\tkey"])
async def test_a_bad_idempotency_key_is_refused(cloche: Harness, key: str) -> None:
    response = await cloche.client.post("/v1/sandboxes", json={}, headers={"Idempotency-Key": key})
    assert code_of(response) == "invalid_request"
    nothing_left(cloche)


async def test_a_client_that_goes_away_during_a_create_finds_its_sandbox_by_the_key(cloche: Harness) -> None:
    """e2b-dev/E2B#1498: a create that failed late left a running sandbox nobody had the id of."""
    headers = {"Idempotency-Key": "k"}
    making = asyncio.create_task(cloche.client.post("/v1/sandboxes", json={}, headers=headers))
    async with asyncio.timeout(30):
        while not cloche.driver.specs:
            await asyncio.sleep(0.001)
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    response = await cloche.client.post("/v1/sandboxes", json={}, headers=headers)
    assert response.status_code == 201
    assert list(cloche.driver.specs) == [response.json()["id"]]


async def test_limits_are_typed_and_for_each_owner(short_dir: Path) -> None:
    async with harness(short_dir, max_sandboxes=3, max_sandboxes_per_owner=2) as cloche:
        first = await cloche.sandbox()
        await cloche.sandbox()
        full = await cloche.client.post("/v1/sandboxes", json={})
        assert code_of(full) == "limit_reached"
        assert full.json()["details"] == {"limit": 2, "count": 2}
        async with cloche.client_of("bob") as bob:
            assert (await bob.post("/v1/sandboxes", json={})).status_code == 201
            assert (await bob.post("/v1/sandboxes", json={})).json()["details"] == {"limit": 3, "count": 3}
        await cloche.client.delete(f"/v1/sandboxes/{first}")
        assert await cloche.sandbox()
        for guest in list(cloche.driver.guests.values()):
            await guest.close()


@pytest.mark.expected_logs("sandbox ended")
@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (SandboxStatus(RunState.EXITED, ExitReason.OUT_OF_MEMORY, signal=9), ("out_of_memory", None, "SIGKILL")),
        (SandboxStatus(RunState.EXITED, ExitReason.SIGNAL, signal=11), ("signal", None, "SIGSEGV")),
        (SandboxStatus(RunState.EXITED, ExitReason.EXIT, exit_code=3), ("exit", 3, None)),
        (SandboxStatus(RunState.UNKNOWN, ExitReason.LOST), ("lost", None, None)),
        (SandboxStatus(RunState.EXITED, ExitReason.SIGNAL, signal=9, helper="proxy"), ("signal", None, "SIGKILL")),
        (SandboxStatus(RunState.EXITED, ExitReason.OUT_OF_MEMORY, helper="proxy"), ("out_of_memory", None, None)),
        (SandboxStatus(RunState.EXITED, ExitReason.EXIT, exit_code=2, helper="proxy"), ("exit", 2, None)),
        (SandboxStatus(RunState.EXITED, ExitReason.LOST, helper="proxy"), ("lost", None, None)),
    ],
)
async def test_a_sandbox_that_ends_says_why(
    cloche: Harness, status: SandboxStatus, failure: tuple[str, int | None, str | None]
) -> None:
    sandbox_id = await cloche.sandbox(name="box")
    cloche.driver.end(sandbox_id, status)
    async with asyncio.timeout(30):
        while sandbox_id not in cloche.driver.destroyed:
            await asyncio.sleep(0.005)
    got = Sandbox.model_validate_json((await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).content)
    assert got.state == "failed"
    assert got.failure is not None
    assert (got.failure.reason, got.failure.exit_code, got.failure.signal) == failure
    assert ("the proxy of" in got.failure.message) == bool(status.helper and failure[0] != "out_of_memory")
    call = await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")
    assert code_of(call) == "sandbox_not_running"
    assert call.json()["details"]["state"] == "failed"
    assert call.json()["details"]["failure"]["reason"] == failure[0]
    assert (await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == "deleted"


@pytest.mark.expected_logs("sandbox ended")
async def test_an_end_that_is_noticed_late_is_waited_for(cloche: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a call was told that the guest cannot be reached, a second after its sandbox had ended."""
    noticed, wait_exit = asyncio.Event(), cloche.driver.wait_exit

    async def notice_late(sandbox_id: str) -> SandboxStatus:
        status = await wait_exit(sandbox_id)
        await noticed.wait()
        return status

    monkeypatch.setattr(cloche.driver, "wait_exit", notice_late)
    sandbox_id = await cloche.sandbox()
    sandboxes = cloche.server.services.sandboxes
    await sandboxes.settle(sandbox_id, 0.01)
    assert sandboxes.registry.known(sandbox_id).state == "running", "nobody waits for one that is alive"
    cloche.driver.end(sandbox_id, SandboxStatus(RunState.EXITED, ExitReason.EXIT, exit_code=3))
    waiting = asyncio.create_task(sandboxes.settle(sandbox_id, 0.01))
    assert await asyncio.wait([waiting], timeout=0.05) == (set(), {waiting})
    noticed.set()
    await waiting
    assert sandboxes.registry.known(sandbox_id).state == "failed"


async def test_keys_are_made_listed_and_revoked(cloche: Harness) -> None:
    made = (await cloche.client.post("/v1/keys", json={"owner": "bob", "role": "viewer", "label": "ci"})).json()
    assert made["secret"].startswith("clk_")
    listed = await cloche.client.get("/v1/keys")
    assert made["secret"] not in listed.text
    assert [key["label"] for key in listed.json()["items"]] == ["ci", "made at the first start"]
    async with cloche.stranger(made["secret"]) as bob:
        assert (await bob.get("/v1/info")).json()["role"] == Role.VIEWER
        revoked = await cloche.client.delete(f"/v1/keys/{made['id']}")
        assert revoked.json()["revoked_at"] is not None
        assert code_of(await bob.get("/v1/info")) == "unauthenticated"
    own = listed.json()["items"][-1]["id"]
    assert code_of(await cloche.client.delete(f"/v1/keys/{own}")) == "conflict"
    assert code_of(await cloche.client.delete("/v1/keys/key-aaaaaaaaaaaa")) == "not_found"


async def test_without_a_working_driver_creates_say_why(short_dir: Path) -> None:
    async with harness(short_dir, FakeDriver(works=False)) as cloche:
        response = await cloche.client.post("/v1/sandboxes", json={})
        assert code_of(response) == "driver_unavailable"
        assert "it is broken on purpose" in response.json()["details"]["why"]
        assert (await cloche.client.get("/v1/info")).json()["default_driver"] is None
