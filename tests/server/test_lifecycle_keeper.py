"""Policies that are kept: by a real server over fake guests that say how busy they are, on a clock that tests set on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from cloche.errors import InternalError, StorageFull
from cloche_server.clock import now_us

from .conftest import Harness
from .fake_guest import echo, http_answer


class Time:
    """Of one server. It stands still unless a test lets it pass: how long a test takes is the machine's affair."""

    def __init__(self, cloche: Harness) -> None:
        self._keeper = cloche.server.services.sandboxes._keeper
        self._now_us = now_us()
        object.__setattr__(cloche.server.services.sandboxes.registry, "clock", lambda: self._now_us)

    def passes(self, seconds: float) -> None:
        self._now_us += int(seconds * 1e6)
        self._keeper._poked.set()


@pytest.fixture
def clock(cloche: Harness) -> Time:
    return Time(cloche)


class Guest:
    """Says what `busy` and `idle_s` are; counts how often it was asked."""

    def __init__(self, cloche: Harness, sandbox_id: str) -> None:
        self.busy, self.idle_s, self.asked = False, 1e6, 0
        cloche.driver.guests[sandbox_id].raw = self._raw

    async def _raw(self, *args: Any) -> None:
        if args[1] != "/v1/activity":
            await echo(*args)
            return
        self.asked += 1
        args[4].write(http_answer(200, {"busy": self.busy, "reasons": [], "idle_s": self.idle_s}))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):  # seconds only on a machine that does much else
        while not condition():
            await asyncio.sleep(0.005)


def state_of(cloche: Harness, sandbox_id: str) -> str:
    row = cloche.server.services.sandboxes.registry.row(sandbox_id)
    assert row is not None
    return row.state.value


async def becomes(cloche: Harness, sandbox_id: str, state: str) -> None:
    await until(lambda: state_of(cloche, sandbox_id) == state)


async def settled(cloche: Harness) -> None:
    """The keeper has done what it had to do, and sleeps."""
    keeper = cloche.server.services.sandboxes._keeper
    for _ in range(3):
        await until(lambda: not keeper._looks and not keeper._poked.is_set())
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(("action", "state"), [("suspend", "suspended"), ("stop", "stopped"), ("delete", "deleted")])
async def test_an_idle_sandbox_is_put_to_rest(cloche: Harness, clock: Time, action: str, state: str) -> None:
    """cloudflare/sandbox-sdk#319, #624: the idle time that was asked for was ignored."""
    sandbox_id = await cloche.sandbox(lifecycle={"idle_timeout_s": 60, "idle_action": action})
    guest = Guest(cloche, sandbox_id)
    clock.passes(59)
    await settled(cloche)
    assert (state_of(cloche, sandbox_id), guest.asked) == ("running", 0)
    clock.passes(2)
    await becomes(cloche, sandbox_id, state)
    assert guest.asked == 1


async def test_a_busy_cell_is_never_suspended_and_its_end_begins_the_time_anew(cloche: Harness, clock: Time) -> None:
    """cloudflare/sandbox-sdk#345, #476, #101: sandboxes were put to sleep while they worked."""
    sandbox_id = await cloche.sandbox(lifecycle={"idle_timeout_s": 60})
    guest = Guest(cloche, sandbox_id)
    guest.busy = True
    for n in range(1, 4):
        clock.passes(61)
        await until(lambda n=n: guest.asked == n)  # type: ignore[misc]
        await settled(cloche)
        assert state_of(cloche, sandbox_id) == "running"
    guest.busy, guest.idle_s = False, 10.0
    clock.passes(61)
    await until(lambda: guest.asked == 4)
    await settled(cloche)
    assert state_of(cloche, sandbox_id) == "running"
    guest.idle_s = 61.0
    clock.passes(51)
    await becomes(cloche, sandbox_id, "suspended")


async def test_a_call_moves_the_deadline_and_looking_does_not(cloche: Harness, clock: Time) -> None:
    sandbox_id = await cloche.sandbox(lifecycle={"idle_timeout_s": 60})
    Guest(cloche, sandbox_id)
    clock.passes(50)
    await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/contexts/default/interrupt")
    clock.passes(50)
    await settled(cloche)
    assert state_of(cloche, sandbox_id) == "running"
    await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")
    clock.passes(11)
    await becomes(cloche, sandbox_id, "suspended")


async def test_a_reader_that_is_merely_connected_does_not_keep_it_awake(cloche: Harness, clock: Time) -> None:
    """daytonaio/daytona#4805: a dead client counted as activity every 45 s, so nothing was ever stopped."""
    sandbox_id = await cloche.sandbox(lifecycle={"idle_timeout_s": 60})
    Guest(cloche, sandbox_id)
    told = cloche.driver.guests[sandbox_id].raw

    async def raw(*args: Any) -> None:
        if args[1] != "/v1/events":
            await told(*args)
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        args[4].write(head + b"d\r\n: heartbeat\n\n\r\n")
        await asyncio.sleep(3600)

    cloche.driver.guests[sandbox_id].raw = raw
    async with cloche.client.stream("GET", f"/v1/sandboxes/{sandbox_id}/events") as response:
        parts = response.aiter_raw()
        await anext(parts)
        clock.passes(61)
        await becomes(cloche, sandbox_id, "suspended")
        assert b"sandbox_not_running" in b"".join([part async for part in parts])
    assert state_of(cloche, sandbox_id) == "suspended"


@pytest.mark.parametrize("looks", [False, True])
async def test_a_call_under_way_is_work_unless_it_only_looks(cloche: Harness, clock: Time, looks: bool) -> None:
    sandbox_id = await cloche.sandbox(lifecycle={"idle_timeout_s": 60})
    guest, begun, go_on = Guest(cloche, sandbox_id), asyncio.Event(), asyncio.Event()
    told = cloche.driver.guests[sandbox_id].raw

    async def raw(*args: Any) -> None:
        if args[1].startswith("/v1/contexts/"):
            begun.set()
            await go_on.wait()
        await told(*args)

    cloche.driver.guests[sandbox_id].raw = raw
    url = f"/v1/sandboxes/{sandbox_id}/contexts/default"
    call = asyncio.create_task(cloche.client.get(url) if looks else cloche.client.post(f"{url}/interrupt"))
    await begun.wait()
    clock.passes(61)
    if looks:
        await becomes(cloche, sandbox_id, "suspended")
    else:
        await settled(cloche)
        assert (state_of(cloche, sandbox_id), guest.asked) == ("running", 0)
    go_on.set()
    await call


async def test_a_paused_sandbox_is_suspended_when_its_time_has_come(cloche: Harness, clock: Time) -> None:
    sandbox_id = await cloche.sandbox(lifecycle={"idle_timeout_s": 60})
    await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/pause")
    clock.passes(61)
    await becomes(cloche, sandbox_id, "suspended")


async def test_a_new_policy_takes_effect_at_once(cloche: Harness, clock: Time) -> None:
    sandbox_id = await cloche.sandbox()
    Guest(cloche, sandbox_id)
    clock.passes(100)
    await settled(cloche)
    assert state_of(cloche, sandbox_id) == "running"
    url = f"/v1/sandboxes/{sandbox_id}"
    changed = await cloche.client.patch(url, json={"lifecycle": {"idle_timeout_s": 60}})
    assert changed.json()["lifetime"]["idle_at"] is not None
    await becomes(cloche, sandbox_id, "suspended")


async def test_a_lifetime_ends_and_then_it_is_not_woken_before_it_gets_a_longer_one(
    cloche: Harness, clock: Time
) -> None:
    policy = {"max_lifetime_s": 60, "lifetime_action": "suspend"}
    sandbox_id = await cloche.sandbox(lifecycle=policy)
    Guest(cloche, sandbox_id).busy = True
    clock.passes(61)
    await becomes(cloche, sandbox_id, "suspended")
    call, url = f"/v1/sandboxes/{sandbox_id}/contexts/default/interrupt", f"/v1/sandboxes/{sandbox_id}"
    for path in (call, f"{url}/resume"):
        refused = (await cloche.client.post(path)).json()
        assert refused["code"] == "sandbox_not_running"
        assert "max_lifetime_s" in refused["hint"]
    await cloche.client.patch(url, json={"lifecycle": policy | {"max_lifetime_s": 600}})
    assert (await cloche.client.post(call)).status_code == 200


async def test_one_at_rest_for_long_enough_is_deleted(cloche: Harness, clock: Time) -> None:
    sandbox_id = await cloche.sandbox(lifecycle={"delete_after_s": 60})
    await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/suspend")
    clock.passes(59)
    await settled(cloche)
    assert state_of(cloche, sandbox_id) == "suspended"
    clock.passes(2)
    await becomes(cloche, sandbox_id, "deleted")
    assert cloche.server.services.sandboxes.saved.on_disk() == []


@pytest.mark.expected_logs("could not be saved", "could not be kept")
@pytest.mark.parametrize("error", [StorageFull("full"), InternalError("broken")])
async def test_a_suspend_that_fails_is_tried_again_later_and_later(
    cloche: Harness, clock: Time, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    sandbox_id = await cloche.sandbox(lifecycle={"idle_timeout_s": 60})
    Guest(cloche, sandbox_id)
    cloche.driver.checkpoint_error = error

    def delays() -> list[float]:
        return [each.again_in_s for each in caplog.records if "could not be kept" in each.getMessage()]  # type: ignore[attr-defined]

    clock.passes(61)
    await until(lambda: len(delays()) == 1)
    for n in (2, 3):
        await settled(cloche)
        assert len(delays()) == n - 1
        clock.passes(5 * 2 ** (n - 2))
        await until(lambda n=n: len(delays()) == n)  # type: ignore[misc]
    assert delays() == [5, 10, 20]
    await settled(cloche)
    events = [
        json.loads(body) for _, target, _, body in cloche.driver.guests[sandbox_id].requests if target == "/v1/events"
    ]
    failed = [event["data"] for event in events if event["type"] == "policy_failed"]
    assert [(each["action"], each["why"], each["again_in_s"]) for each in failed] == [
        ("suspend", "idle_timeout", after) for after in (5, 10, 20)
    ]
    assert {each["failure"]["code"] for each in failed} == {
        "storage_full" if isinstance(error, StorageFull) else "snapshot_failed"
    }
    assert state_of(cloche, sandbox_id) == "running"
    await settled(cloche)
    cloche.driver.checkpoint_error = None
    clock.passes(20)
    await becomes(cloche, sandbox_id, "suspended")


async def test_one_that_is_called_at_the_last_moment_is_left_alone(cloche: Harness, clock: Time) -> None:
    """The guest said that it is idle; then, before it is suspended, a call comes."""
    sandbox_id = await cloche.sandbox(lifecycle={"idle_timeout_s": 60})
    service = cloche.server.services.sandboxes
    guest = Guest(cloche, sandbox_id)
    async with service.changes.hold(sandbox_id, "snapshot"):
        clock.passes(61)
        await until(lambda: guest.asked == 1)
        call = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/contexts/default/interrupt")
        assert call.status_code == 200
    await settled(cloche)
    assert state_of(cloche, sandbox_id) == "running"
    assert cloche.driver.checkpoints == []
