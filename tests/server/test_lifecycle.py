"""Pause, suspend, stop, resume and the waking call, through the API, with a fake driver."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloche.errors import Conflict, ErrorBody, Gone, InternalError, SandboxStartFailed, StorageFull
from cloche.models import Role
from cloche_server.drivers import ExitReason, RunState, SandboxStatus
from cloche_server.ids import same_memory

from .conftest import Harness, harness
from .fake_driver import FakeDriver
from .fake_guest import echo, http_answer


def code_of(response: httpx.Response) -> str:
    return ErrorBody.model_validate_json(response.content).code


async def change(cloche: Harness, sandbox_id: str, what: str) -> dict[str, Any]:
    response = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{what}")
    assert response.status_code == 200, response.text
    return dict(response.json())


async def work(cloche: Harness, sandbox_id: str, **headers: str) -> httpx.Response:
    """A call that goes into the sandbox."""
    url = f"/v1/sandboxes/{sandbox_id}/contexts/default/interrupt"
    return await cloche.client.post(url, headers={name.replace("_", "-"): text for name, text in headers.items()})


async def state_of(cloche: Harness, sandbox_id: str) -> str:
    return str((await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"])


@pytest.mark.parametrize(("what", "state"), [("pause", "paused"), ("suspend", "suspended"), ("stop", "stopped")])
async def test_a_sandbox_is_put_to_rest_and_woken_by_request(cloche: Harness, what: str, state: str) -> None:
    sandbox_id = await cloche.sandbox(name="box")
    first = await change(cloche, sandbox_id, what)
    assert (first["state"], first["sandbox_id"]) == (state, sandbox_id)
    assert await change(cloche, sandbox_id, what) | {"duration_s": 0, "paused_s": None} == first | {
        "duration_s": 0,
        "paused_s": None,
    }
    assert await state_of(cloche, sandbox_id) == state
    woken = await change(cloche, sandbox_id, "resume")
    assert woken["state"] == "running"
    assert (await work(cloche, sandbox_id)).status_code == 200
    assert not cloche.server.services.sandboxes.saved.on_disk()


async def test_a_suspend_leaves_nothing_but_its_directory(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    await change(cloche, sandbox_id, "suspend")
    assert cloche.driver.specs == {}
    assert list(cloche.settings.uplinks_dir.iterdir()) == []
    assert cloche.server.services.sandboxes.saved.on_disk() == [sandbox_id]
    await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")
    assert cloche.server.services.sandboxes.saved.on_disk() == []


@pytest.mark.parametrize("what", ["pause", "suspend", "stop"])
async def test_fifty_calls_at_once_wake_a_sandbox_once(cloche: Harness, what: str) -> None:
    sandbox_id = await cloche.sandbox()
    starts: list[str] = []
    start, resume = cloche.driver.start, cloche.driver.resume

    async def counted_start(spec: Any, probe: Any = None, saved: Any = None) -> None:
        starts.append(spec.sandbox_id)
        await start(spec, probe, saved)

    async def counted_resume(sandbox_id: str) -> None:
        starts.append(sandbox_id)
        await resume(sandbox_id)

    await change(cloche, sandbox_id, what)
    cloche.driver.start, cloche.driver.resume = counted_start, counted_resume  # type: ignore[method-assign]
    answers = await asyncio.gather(*(work(cloche, sandbox_id) for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert starts == [sandbox_id]


async def test_epochs_say_whether_memory_went_on(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    epochs = [(await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["epoch"]]
    for what in ("pause", "suspend", "stop"):
        await change(cloche, sandbox_id, what)
        epochs.append((await change(cloche, sandbox_id, "resume"))["epoch"])
    first, paused, suspended, stopped = epochs
    assert first == paused
    assert suspended != first
    assert same_memory(first, suspended)
    assert not same_memory(first, stopped)


async def test_a_handle_of_a_life_whose_memory_is_gone_is_stale(cloche: Harness) -> None:
    """cloudflare/sandbox-sdk#158, #779, #833: handles of before a restart acted on what was there afterwards."""
    sandbox_id = await cloche.sandbox()
    old = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["epoch"]
    await change(cloche, sandbox_id, "suspend")
    assert (await work(cloche, sandbox_id, Cloche_Epoch=old)).status_code == 200
    now = (await change(cloche, sandbox_id, "stop"))["epoch"]
    refused = await work(cloche, sandbox_id, Cloche_Epoch=old)
    assert (code_of(refused), refused.json()["details"]) == ("stale", {"epoch": old, "now": now})
    looking = await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts", headers={"Cloche-Epoch": old})
    assert code_of(looking) == "stale"
    assert await state_of(cloche, sandbox_id) == "stopped"
    assert (await work(cloche, sandbox_id, Cloche_Epoch=now)).status_code == 200


async def test_an_epoch_that_can_be_none_is_refused(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    assert code_of(await work(cloche, sandbox_id, Cloche_Epoch="x" * 65)) == "invalid_request"


@pytest.mark.parametrize("what", ["pause", "suspend", "stop"])
async def test_looking_neither_wakes_nor_counts_as_activity(cloche: Harness, what: str) -> None:
    """daytonaio/daytona#4805: what only watches kept a sandbox from being stopped."""
    sandbox_id = await cloche.sandbox()
    url = f"/v1/sandboxes/{sandbox_id}"
    active = (await cloche.client.get(url)).json()["last_activity_at"]
    assert (await cloche.client.get(f"{url}/contexts")).status_code == 200
    assert (await cloche.client.get(url)).json()["last_activity_at"] == active
    await change(cloche, sandbox_id, what)
    state = {"pause": "paused", "suspend": "suspended", "stop": "stopped"}[what]
    for path in ("/contexts", "/processes", "/terminals", "/ports", "/events", "/contexts/default/events"):
        answer = await cloche.client.get(url + path)
        assert (code_of(answer), answer.json()["details"]["state"]) == ("sandbox_not_running", state)
        assert "looking does not wake" in answer.json()["hint"]
    await cloche.client.get("/v1/sandboxes")
    assert (await cloche.client.get(url)).json()["last_activity_at"] == active
    assert (await work(cloche, sandbox_id)).status_code == 200
    assert (await cloche.client.get(url)).json()["last_activity_at"] > active


async def test_without_auto_resume_calls_are_told_to_resume(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox(lifecycle={"auto_resume": False})
    await change(cloche, sandbox_id, "suspend")
    refused = await work(cloche, sandbox_id)
    assert code_of(refused) == "sandbox_not_running"
    assert "resume it first" in refused.json()["hint"]
    await change(cloche, sandbox_id, "resume")
    assert (await work(cloche, sandbox_id)).status_code == 200


async def test_a_wake_that_fails_is_typed_and_keeps_what_was_saved(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    await change(cloche, sandbox_id, "suspend")
    cloche.driver.start_error = SandboxStartFailed("runsc said no", details={"output": "no such cgroup"})
    answers = await asyncio.gather(*(work(cloche, sandbox_id) for _ in range(3)))
    assert {code_of(answer) for answer in answers} == {"sandbox_start_failed"}
    assert await state_of(cloche, sandbox_id) == "suspended"
    assert cloche.server.services.sandboxes.saved.on_disk() == [sandbox_id]
    cloche.driver.start_error = None
    assert (await work(cloche, sandbox_id)).status_code == 200


async def test_a_guest_that_does_not_come_back_is_a_wake_that_fails(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    await change(cloche, sandbox_id, "suspend")
    cloche.driver.no_guest, cloche.driver.hello_bound_s = True, 0.1
    assert code_of(await work(cloche, sandbox_id)) == "sandbox_start_failed"
    assert await state_of(cloche, sandbox_id) == "suspended"
    assert cloche.driver.specs == {}
    cloche.driver.no_guest, cloche.driver.hello_bound_s = False, 30
    assert (await work(cloche, sandbox_id)).status_code == 200


@pytest.mark.expected_logs("could not be saved", "sandbox ended")
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageFull("the disk is full"), "storage_full"),
        (InternalError("oops", hint="try again", details={"output": "oops"}), "snapshot_failed"),
        (OSError("oops"), "snapshot_failed"),
    ],
)
@pytest.mark.parametrize("what", ["suspend", "stop"])
async def test_a_save_that_fails_leaves_the_sandbox_running(
    cloche: Harness, what: str, error: Exception, code: str
) -> None:
    sandbox_id = await cloche.sandbox()
    cloche.driver.checkpoint_error = error
    refused = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{what}")
    assert (code_of(refused), refused.json()["retryable"]) == (code, True)
    if code == "snapshot_failed":
        assert refused.json()["details"] == {"driver": "runc", "output": "oops"}
        assert refused.json()["message"].endswith("goes on as it was: oops")
    assert await state_of(cloche, sandbox_id) == "running"
    assert (await work(cloche, sandbox_id)).status_code == 200
    cloche.driver.end(sandbox_id, SandboxStatus(RunState.EXITED, ExitReason.EXIT, exit_code=3))
    async with asyncio.timeout(30):
        while await state_of(cloche, sandbox_id) != "failed":  # it is watched as before
            await asyncio.sleep(0.005)


async def test_a_driver_without_memory_refuses_to_suspend_and_can_stop(short_dir: Path) -> None:
    driver = FakeDriver(capabilities=FakeDriver.capabilities - {"memory_snapshot"})
    async with harness(short_dir, driver) as cloche:
        sandbox_id = await cloche.sandbox()
        refused = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/suspend")
        assert code_of(refused) == "unsupported_capability"
        assert "stop it" in refused.json()["hint"]
        policy = {"idle_timeout_s": 60}
        patch = await cloche.client.patch(f"/v1/sandboxes/{sandbox_id}", json={"lifecycle": policy})
        create = await cloche.client.post("/v1/sandboxes", json={"lifecycle": policy})
        assert code_of(patch) == code_of(create) == "unsupported_capability"
        policy |= {"idle_action": "stop"}
        patch = await cloche.client.patch(f"/v1/sandboxes/{sandbox_id}", json={"lifecycle": policy})
        assert patch.json()["lifecycle"]["idle_action"] == "stop"
        first = driver.specs[sandbox_id].guest_env["CLOCHE_UPLINK_TOKEN"]
        await change(cloche, sandbox_id, "stop")
        assert (await work(cloche, sandbox_id)).status_code == 200
        assert driver.specs[sandbox_id].guest_env["CLOCHE_UPLINK_TOKEN"] != first
        await driver.guests[sandbox_id].close()


async def test_stop_ends_everything_in_the_guest_and_suspend_nothing(cloche: Harness) -> None:
    asked = {}
    for what in ("suspend", "stop"):
        sandbox_id = await cloche.sandbox()
        guest = cloche.driver.guests[sandbox_id]
        await change(cloche, sandbox_id, what)
        asked[what] = [target for _, target, _, _ in guest.requests if target not in ("/v1/health", "/v1/events")]
    assert asked == {"suspend": ["/v1/uplinks/close"], "stop": ["/v1/end-all", "/v1/uplinks/close"]}


async def test_a_call_under_way_may_end_before_a_suspend_and_the_next_one_waits_for_it(
    cloche: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloche_server.sandboxes._saving.GRACE_S", 60.0)
    sandbox_id = await cloche.sandbox()
    begun, go_on = asyncio.Event(), asyncio.Event()
    guest = cloche.driver.guests[sandbox_id]

    async def raw(*args: Any) -> None:
        if args[1].endswith("/interrupt") and not begun.is_set():
            begun.set()
            await go_on.wait()
        await echo(*args)

    guest.raw = raw
    first = asyncio.create_task(work(cloche, sandbox_id))
    await begun.wait()
    resting = asyncio.create_task(change(cloche, sandbox_id, "suspend"))
    async with asyncio.timeout(30):
        while await state_of(cloche, sandbox_id) != "suspending":
            await asyncio.sleep(0.001)
    second = asyncio.create_task(work(cloche, sandbox_id))
    go_on.set()
    assert (await first).status_code == 200
    assert (await resting)["state"] == "suspended"
    assert (await second).status_code == 200
    assert await state_of(cloche, sandbox_id) == "running"


@pytest.mark.parametrize(("what", "code"), [("suspend", "sandbox_not_running"), ("save", "sandbox_unreachable")])
async def test_a_call_that_takes_longer_is_cut_and_says_whether_to_repeat_it(
    cloche: Harness, short_dir: Path, monkeypatch: pytest.MonkeyPatch, what: str, code: str
) -> None:
    """Who repeats it at once in a sandbox that was put to rest wakes it."""
    monkeypatch.setattr("cloche_server.sandboxes._saving.GRACE_S", 0.1)
    sandbox_id = await cloche.sandbox()
    begun = asyncio.Event()

    async def raw(*args: Any) -> None:
        if args[1].endswith("/interrupt"):
            begun.set()
            await asyncio.sleep(3600)
        await echo(*args)

    cloche.driver.guests[sandbox_id].raw = raw
    call = asyncio.create_task(work(cloche, sandbox_id))
    await begun.wait()
    await cut_by(cloche, sandbox_id, what, short_dir)
    answer = (await call).json()
    assert (answer["code"], answer["retryable"], answer["details"]["cut"]) == (code, what == "save", True)


async def cut_by(cloche: Harness, sandbox_id: str, what: str, directory: Path) -> None:
    if what == "suspend":
        await change(cloche, sandbox_id, "suspend")
        return
    service = cloche.server.services.sandboxes
    async with service.changes.hold(sandbox_id, "snapshot"):
        await service.save(service.registry.live[sandbox_id], directory / "snap", keep_running=True)


@pytest.mark.parametrize(("what", "code"), [("suspend", "sandbox_not_running"), ("save", "sandbox_unreachable")])
async def test_a_stream_is_cut_and_says_whether_to_come_back(
    cloche: Harness, short_dir: Path, what: str, code: str
) -> None:
    """A reader of a sandbox that rests would wake it if it did; one of a sandbox that goes on should."""
    sandbox_id = await cloche.sandbox()

    async def raw(*args: Any) -> None:
        if not args[1].startswith("/v1/contexts/default/events"):
            await echo(*args)
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        args[4].write(head + b"d\r\n: heartbeat\n\n\r\n")
        await asyncio.sleep(3600)

    guest = cloche.driver.guests[sandbox_id]
    guest.raw = raw
    async with cloche.client.stream("GET", f"/v1/sandboxes/{sandbox_id}/contexts/default/events") as response:
        parts = response.aiter_raw()
        assert await anext(parts) == b": heartbeat\n\n"
        await cut_by(cloche, sandbox_id, what, short_dir)
        rest = b"".join([part async for part in parts]).decode()
    name, data = rest.strip().split("\n")
    assert name == "event: failure"
    assert json.loads(data.removeprefix("data: "))["code"] == code
    guest.raw = echo
    assert (await work(cloche, sandbox_id)).status_code == 200


async def test_a_saved_sandbox_goes_on_in_the_same_life(cloche: Harness, short_dir: Path) -> None:
    sandbox_id = await cloche.sandbox()
    service = cloche.server.services.sandboxes
    live = service.registry.live[sandbox_id]
    before = live.row
    saved = await service.save(live, short_dir / "snap", keep_running=True)
    assert saved.identity is not None
    assert (saved.identity.sandbox_id, saved.identity.epoch) == (sandbox_id, before.epoch)
    assert service.registry.row(sandbox_id) == before
    assert (await work(cloche, sandbox_id)).status_code == 200


async def test_changes_of_one_sandbox_wait_for_one_another_and_say_for_what(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    service = cloche.server.services.sandboxes
    async with service.changes.hold(sandbox_id, "fork"):
        with pytest.raises(Conflict, match="under way: fork"):
            async with service.changes.hold(sandbox_id, "snapshot", bound_s=0.01):
                pass
        waiting = asyncio.create_task(change(cloche, sandbox_id, "suspend"))
        await asyncio.sleep(0)
        assert await state_of(cloche, sandbox_id) == "running"
    assert (await waiting)["state"] == "suspended"


@pytest.mark.parametrize("what", ["suspend", "resume", "fork"])
async def test_a_delete_does_not_wait_for_what_is_under_way(cloche: Harness, what: str) -> None:
    sandbox_id = await cloche.sandbox()
    service = cloche.server.services.sandboxes
    begun = asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        begun.set()
        await asyncio.sleep(3600)

    async def fork() -> None:
        async with service.changes.hold(sandbox_id, "fork"):
            await never()

    if what == "resume":
        await change(cloche, sandbox_id, "suspend")
    cloche.driver.checkpoint = cloche.driver.start = never  # type: ignore[method-assign,assignment]
    under_way = asyncio.create_task(
        fork() if what == "fork" else cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{what}")  # type: ignore[arg-type]
    )
    await begun.wait()
    assert (await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == "deleted"
    if what == "fork":
        with pytest.raises(Gone):
            await under_way
    else:
        answer = await under_way
        assert answer is not None
        assert code_of(answer) == "gone"
    assert cloche.driver.specs == {}
    assert service.saved.on_disk() == []
    assert list(cloche.settings.uplinks_dir.iterdir()) == []


async def test_those_at_rest_count_as_sandboxes_but_not_as_running_ones(short_dir: Path) -> None:
    async with harness(short_dir, max_sandboxes=3, max_running=2) as cloche:
        first = await cloche.sandbox()
        await cloche.sandbox()
        full = await cloche.client.post("/v1/sandboxes", json={})
        assert (code_of(full), full.json()["details"]) == ("limit_reached", {"limit": 2, "count": 2})
        await change(cloche, first, "suspend")
        third = await cloche.sandbox()
        full = await cloche.client.post("/v1/sandboxes", json={})
        assert full.json()["details"] == {"limit": 3, "count": 3}
        refused = await work(cloche, first)
        assert (code_of(refused), refused.json()["details"]) == ("limit_reached", {"limit": 2, "count": 2})
        assert await state_of(cloche, first) == "suspended"
        await change(cloche, third, "stop")
        assert (await work(cloche, first)).status_code == 200
        for guest in list(cloche.driver.guests.values()):
            await guest.close()


async def test_a_sandbox_at_rest_keeps_its_name_and_is_found_by_its_state(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox(name="box")
    await change(cloche, sandbox_id, "suspend")
    assert code_of(await cloche.client.post("/v1/sandboxes", json={"name": "box"})) == "conflict"
    assert (await cloche.client.get("/v1/sandboxes/by-name/box")).json()["state"] == "suspended"
    [found] = (await cloche.client.get("/v1/sandboxes?state=suspended")).json()["items"]
    assert found["id"] == sandbox_id


async def test_the_changes_are_for_members_and_their_own_sandboxes(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    for what in ("pause", "suspend", "stop", "resume"):
        async with cloche.client_of("bob") as bob, cloche.client_of("admin", Role.VIEWER) as viewer:
            assert code_of(await bob.post(f"/v1/sandboxes/{sandbox_id}/{what}")) == "not_found"
            assert code_of(await viewer.post(f"/v1/sandboxes/{sandbox_id}/{what}")) == "forbidden"


async def test_what_follows_from_no_state_says_so(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    await change(cloche, sandbox_id, "stop")
    for what in ("pause", "suspend"):
        refused = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{what}")
        assert (code_of(refused), refused.json()["hint"]) == ("sandbox_not_running", "resume it first")
    await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")
    for what in ("pause", "suspend", "stop", "resume"):
        assert code_of(await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{what}")) == "gone"


def told(cloche: Harness, sandbox_id: str) -> list[dict[str, Any]]:
    """What the guest was told for the journal of the sandbox."""
    requests = cloche.driver.guests[sandbox_id].requests
    return [json.loads(body) for method, target, _, body in requests if (method, target) == ("POST", "/v1/events")]


def state_event(state: str, reason: str, failure: object = None) -> dict[str, Any]:
    return {"type": "sandbox_state", "data": {"state": state, "reason": reason, "failure": failure}}


async def test_the_journal_hears_of_a_pause_and_of_its_end(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    await change(cloche, sandbox_id, "pause")
    assert told(cloche, sandbox_id) == [state_event("paused", "pause")]
    await change(cloche, sandbox_id, "resume")
    assert told(cloche, sandbox_id)[1:] == [state_event("running", "resume")]


@pytest.mark.parametrize(("what", "during"), [("suspend", "suspending"), ("stop", "stopping")])
async def test_the_journal_hears_of_a_rest_that_failed(cloche: Harness, what: str, during: str) -> None:
    sandbox_id = await cloche.sandbox()
    cloche.driver.checkpoint_error = StorageFull("no space is left")
    assert code_of(await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{what}")) == "storage_full"
    failure = {"code": "storage_full", "message": "no space is left"}
    assert told(cloche, sandbox_id) == [state_event(during, what), state_event("running", what, failure)]


async def test_the_journal_hears_of_a_pause_that_failed(cloche: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_: str) -> None:
        raise InternalError("the freezer is broken")

    sandbox_id = await cloche.sandbox()
    monkeypatch.setattr(cloche.driver, "pause", refuse)
    await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/pause")
    failure = {"code": "internal", "message": "the freezer is broken"}
    assert told(cloche, sandbox_id)[1:] == [state_event("running", "pause", failure)]
    assert await state_of(cloche, sandbox_id) == "running"


async def test_a_guest_that_does_not_take_events_is_paused_all_the_same(cloche: Harness) -> None:
    async def refuse(*args: Any) -> None:
        if args[:2] == ("POST", "/v1/events"):
            args[4].write(http_answer(500, {}))
        else:
            await echo(*args)

    sandbox_id = await cloche.sandbox()
    cloche.driver.guests[sandbox_id].raw = refuse
    assert (await change(cloche, sandbox_id, "pause"))["state"] == "paused"
    assert (await change(cloche, sandbox_id, "resume"))["state"] == "running"


async def test_lifetime_tells_of_what_will_happen_alone(cloche: Harness) -> None:
    policy = {"idle_timeout_s": 60, "max_lifetime_s": 3600, "lifetime_action": "suspend", "delete_after_s": 7200}
    sandbox_id = await cloche.sandbox(lifecycle=policy)

    async def told() -> list[str]:
        lifetime = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["lifetime"]
        return sorted(name for name, at in lifetime.items() if at is not None)

    assert await told() == ["ends_at", "idle_at"]
    await change(cloche, sandbox_id, "suspend")
    assert await told() == ["deletes_at"]
    update = {"lifecycle": {**policy, "lifetime_action": "delete", "delete_after_s": None}}
    assert (await cloche.client.patch(f"/v1/sandboxes/{sandbox_id}", json=update)).status_code == 200
    assert await told() == ["ends_at"]
    update["lifecycle"]["lifetime_action"] = "nothing"
    await cloche.client.patch(f"/v1/sandboxes/{sandbox_id}", json=update)
    assert await told() == []


async def test_a_paused_sandbox_does_not_run_to_write_down_that_it_is_suspended(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    guest = cloche.driver.guests[sandbox_id]
    await change(cloche, sandbox_id, "pause")
    asked = len(guest.requests)
    assert (await change(cloche, sandbox_id, "suspend"))["state"] == "suspended"
    assert [target for _, target, _, _ in guest.requests[asked:]] == ["/v1/uplinks/close"]
