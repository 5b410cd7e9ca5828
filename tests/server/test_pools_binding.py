"""A claimed sandbox whose guest was not told yet: whoever needs it first tells it, once, and nothing gets in before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cloche.models import SandboxState
from cloche_server.drivers import ExitReason, RunState, SandboxStatus
from cloche_server.pools._keeper import Keeper
from cloche_server.sandboxes._binding import Binding

from .conftest import Harness, harness
from .fake_driver import FakeDriver
from .fake_guest import echo
from .test_pools import close_guests, create, filled, guest_raw, pool_with, refuse, told, until

pytestmark = pytest.mark.usefixtures("nobody_has_time")


@pytest.fixture
def nobody_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only calls tell guests anything, and creates are not overtaken by refills."""

    async def not_now(_: Keeper) -> bool:
        return False

    monkeypatch.setattr(Keeper, "_bind_one", not_now)
    monkeypatch.setattr(Binding, "begin_at_once", lambda *_: None)
    monkeypatch.setattr("cloche_server.pools._foreground.LONGEST_YIELD_S", 600.0)


async def claimed(cloche: Harness, **body: Any) -> str:
    """One out of a pool of three, whose guests stand still; it was not told."""
    await pool_with(cloche, 3)
    with cloche.server.services.pools.foreground.create():  # else, on a slow machine, a refill is handed out instead
        sandboxes = [(await create(cloche, **body, name=f"n{n}"))["id"] for n in range(3)]
    (frozen,) = cloche.driver.paused
    assert told(cloche, frozen) == []
    assert frozen in sandboxes
    return frozen


def row(cloche: Harness, sandbox_id: str) -> Any:
    return cloche.server.services.sandboxes.store.get(sandbox_id)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "contexts"),
        ("POST", "contexts/default/runs"),
        ("POST", "exec"),
        ("POST", "pause"),
        ("POST", "suspend"),
        ("POST", "stop"),
        ("POST", "snapshots"),
        ("POST", "fork"),
    ],
)
async def test_whatever_needs_the_guest_tells_it_first(cloche: Harness, method: str, path: str) -> None:
    sandbox_id = await claimed(cloche, env={"A": "1"})
    wanted = {
        "contexts/default/runs": {"code": "1"},
        "exec": {"shell": "true"},
        "fork": {"count": 1},
        "snapshots": {},
    }.get(path)
    guest = cloche.driver.guests[sandbox_id]
    before = len(guest.requests)
    answer = await cloche.client.request(method, f"/v1/sandboxes/{sandbox_id}/{path}", json=wanted)
    assert answer.status_code < 400, answer.text
    heard = guest.requests[before:]
    assert heard[0][1] == "/v1/identity"
    assert [target for _, target, _, _ in heard].count("/v1/identity") == 1
    assert row(cloche, sandbox_id).known_as is None


async def test_a_delete_needs_nobody_to_be_told(cloche: Harness) -> None:
    sandbox_id = await claimed(cloche)
    guest = cloche.driver.guests[sandbox_id]
    before = len(guest.requests)
    assert (await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")).status_code == 200
    assert guest.requests[before:] == []
    assert row(cloche, sandbox_id).known_as is None


async def test_looking_at_its_fields_tells_nobody(cloche: Harness) -> None:
    sandbox_id = await claimed(cloche, env={"A": "1"})
    found = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()
    assert (found["state"], found["env"]) == ("running", ["A"])
    assert told(cloche, sandbox_id) == []


async def test_many_first_calls_tell_it_once(cloche: Harness) -> None:
    sandbox_id = await claimed(cloche)
    path = f"/v1/sandboxes/{sandbox_id}/contexts"
    answers = await asyncio.gather(*(cloche.client.get(path) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(told(cloche, sandbox_id)) == 1


@pytest.mark.expected_logs("sandbox ended")
async def test_one_that_refuses_to_be_somebodys_fails_and_says_why(cloche: Harness) -> None:
    sandbox_id = await claimed(cloche)
    guest_raw(cloche, sandbox_id, refuse)
    path = f"/v1/sandboxes/{sandbox_id}"
    answer = (await cloche.client.get(f"{path}/contexts")).json()
    assert (answer["code"], answer["details"]["failure"]["reason"]) == ("sandbox_not_running", "start_failed")
    assert "came out of a pool" in answer["message"]
    assert (await cloche.client.get(path)).json()["state"] == "failed"
    assert sandbox_id in cloche.driver.destroyed


async def test_one_that_does_not_answer_is_told_again_by_the_next_call(
    cloche: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = await claimed(cloche, env={"A": "1"})
    monkeypatch.setattr("cloche_server.sandboxes._binding.BOUND_S", 0.1)  # not before: each was told once in the pool
    monkeypatch.setattr("cloche_server.sandboxes._binding.ENDING_S", 0.05)

    async def silent(*_: Any) -> None:
        await asyncio.sleep(3600)

    guest_raw(cloche, sandbox_id, silent)
    path = f"/v1/sandboxes/{sandbox_id}/contexts"
    error = (await cloche.client.get(path)).json()
    assert error["code"] == "sandbox_unreachable"
    assert "nothing was done" in error["hint"]
    guest_raw(cloche, sandbox_id, echo)
    monkeypatch.setattr("cloche_server.sandboxes._binding.BOUND_S", 60.0)
    assert (await cloche.client.get(path)).status_code == 200
    assert [one["env"] for one in told(cloche, sandbox_id)] == [{"A": "1"}] * 2


@pytest.mark.expected_logs("sandbox ended")
async def test_one_that_is_killed_before_its_first_use_says_so(cloche: Harness) -> None:
    sandbox_id = await claimed(cloche)
    cloche.driver.end(sandbox_id, SandboxStatus(RunState.EXITED, ExitReason.OUT_OF_MEMORY, signal=9))
    error = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")).json()
    assert (error["code"], error["details"]["failure"]["reason"]) == ("sandbox_not_running", "out_of_memory")


async def test_an_idle_one_that_nobody_told_is_not_asked(cloche: Harness) -> None:
    sandbox_id = await claimed(cloche, lifecycle={"idle_timeout_s": 1, "idle_action": "delete"})
    guest = cloche.driver.guests[sandbox_id]
    before = len(guest.requests)
    await until(lambda: row(cloche, sandbox_id).state is SandboxState.DELETED)
    assert guest.requests[before:] == []


@pytest.mark.parametrize("heard", [False, True], ids=["not heard", "heard, not written down"])
async def test_the_next_server_tells_it(short_dir: Path, heard: bool) -> None:
    driver = FakeDriver()
    async with harness(short_dir, driver) as old:
        sandbox_id = await claimed(old, env={"A": "1"})
        old_epoch = driver.guests[sandbox_id].hello["epoch"]
        new_epoch = row(old, sandbox_id).epoch
    replies = driver.guests[sandbox_id].replies
    before = len(replies)
    if heard:
        driver.guests[sandbox_id].hello = {**driver.guests[sandbox_id].hello, "epoch": new_epoch}
    async with harness(short_dir, driver) as new:
        assert row(new, sandbox_id).known_as == {"epoch": old_epoch, "env": {}}
        assert sandbox_id in driver.paused
        answer = await new.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")
        assert answer.status_code == 200, answer.text
        assert sandbox_id not in driver.paused
        assert [(one["epoch"], one["env"]) for one in told(new, sandbox_id)] == [(new_epoch, {"A": "1"})]
        first = replies[before].identity
        assert first is not None
        assert first.env == ({"A": "1"} if heard else {})
        await filled(new, 3)  # else a refill under way breaks, and says so
        await close_guests(new)


async def test_rolling_back_one_that_was_not_told_ends_what_it_was(cloche: Harness) -> None:
    sandbox_id = await claimed(cloche)
    other = next(one for one in cloche.driver.specs if one != sandbox_id and row(cloche, one).pool is None)
    snapshot = (await cloche.client.post(f"/v1/sandboxes/{other}/snapshots", json={})).json()
    path = f"/v1/sandboxes/{sandbox_id}"
    answer = await cloche.client.post(f"{path}/restore", json={"snapshot": snapshot["id"]})
    assert answer.status_code == 200, answer.text
    assert row(cloche, sandbox_id).known_as is None
    assert (await cloche.client.get(f"{path}/contexts")).status_code == 200


async def test_refills_wait_while_a_call_tells_a_guest(cloche: Harness) -> None:
    """They took the processor that the first commands of a burst wanted."""
    sandbox_id = await claimed(cloche)
    asked, go = asyncio.Event(), asyncio.Event()

    async def slow(
        method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        asked.set()
        await go.wait()
        await echo(method, target, headers, body, writer)

    guest_raw(cloche, sandbox_id, slow)
    foreground = cloche.server.services.pools.foreground
    await until(lambda: foreground.is_quiet)
    call = asyncio.create_task(cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts"))
    await asked.wait()
    assert not foreground.is_quiet
    go.set()
    assert (await call).status_code == 200
    await until(lambda: foreground.is_quiet)


async def test_one_that_is_deleted_while_it_is_told_is_gone_and_did_not_fail(
    cloche: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls heard that its guest had refused to be it, and its journal that it had failed."""
    sandbox_id = await claimed(cloche)
    answers, begun, goes_on = asyncio.Event(), asyncio.Event(), asyncio.Event()
    destroy = cloche.driver.destroy

    async def late(*call: Any) -> None:
        await answers.wait()
        await refuse(*call)

    async def slow(one: str) -> None:
        begun.set()
        await goes_on.wait()
        await destroy(one)

    guest_raw(cloche, sandbox_id, late)
    call = asyncio.create_task(cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts"))
    await until(lambda: told(cloche, sandbox_id))
    monkeypatch.setattr(cloche.driver, "destroy", slow)
    deleting = asyncio.create_task(cloche.client.delete(f"/v1/sandboxes/{sandbox_id}"))
    await begun.wait()
    answers.set()
    heard = await call
    assert (heard.status_code, heard.json()["code"]) == (410, "gone"), heard.text
    assert row(cloche, sandbox_id).failure is None
    goes_on.set()
    assert (await deleting).status_code == 200
