"""Usage: the account of one sandbox, and how the service keeps all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from cloche.errors import SandboxNotRunning
from cloche.models import SandboxState
from cloche_server.drivers import ExitReason, RunState, SandboxStatus, Usage
from cloche_server.usage._account import MEBIBYTE, Account, Reading

from .conftest import harness
from .fake_driver import FakeDriver

SECOND = 1_000_000


def reading(
    at_s: float, cpu_s: float = 0, memory_mb: float = 0, peak_mb: float = 0, up: int = 0, down: int = 0
) -> Reading:
    return Reading(
        at_us=int(at_s * SECOND),
        cpu_s=cpu_s,
        memory_bytes=int(memory_mb * MEBIBYTE),
        memory_peak_bytes=int(peak_mb * MEBIBYTE),
        processes=1,
        disk_bytes=0,
        received=up,
        sent=down,
    )


# -- the account


def test_counters_add_up_and_memory_counts_with_the_mean_of_two_readings() -> None:
    account = Account({})
    account.add(reading(110, cpu_s=3, memory_mb=100, up=5), "e1", 100 * SECOND, running=True)
    assert (account.running_s, account.memory_mb_s, account.cpu_s) == (10, 1000, 3)
    account.add(reading(120, cpu_s=4, memory_mb=300, peak_mb=400, up=7, down=1), "e1", 100 * SECOND, running=True)
    assert (account.running_s, account.memory_mb_s) == (20, 1000 + 2000)
    assert (account.cpu_s, account.received, account.sent) == (4, 7, 1)
    assert account.memory_peak_bytes == 400 * MEBIBYTE


def test_paused_time_holds_memory_and_does_not_run() -> None:
    account = Account({})
    account.add(reading(10, memory_mb=100), "e1", 0, running=True)
    account.add(reading(20, memory_mb=100), "e1", 0, running=False)
    assert (account.running_s, account.memory_mb_s) == (10, 2000)


def test_a_new_life_begins_at_zero_and_the_time_between_costs_nothing() -> None:
    account = Account({})
    account.add(reading(10, cpu_s=5, memory_mb=100, up=50), "e1", 0, running=True)
    account.close_life()
    account.add(reading(11, cpu_s=5, memory_mb=0, up=50), "e1", 0, running=True)  # the loop, while it is being ended
    suspended = account.to_json()
    for resumed in (account, Account(suspended)):
        # More than the first life's, so that no counter has gone back.
        resumed.add(reading(1010, cpu_s=7, memory_mb=100, up=60), "e2", 1000 * SECOND, running=True)
        assert resumed.cpu_s == 12
        assert resumed.received == 110
        assert resumed.running_s == 11 + 10
        assert resumed.memory_mb_s == 1000 + 50 + 1000


def test_a_claim_changes_the_epoch_and_begins_no_life() -> None:
    account = Account({})
    account.add(reading(10, cpu_s=5), "e1", 0, running=True)
    account.add(reading(20, cpu_s=6), "e2", 0, running=True)
    assert (account.cpu_s, account.running_s) == (6, 20)


def test_a_new_server_goes_on_where_the_old_one_was() -> None:
    account = Account({})
    account.add(reading(10, cpu_s=5, memory_mb=100, up=50), "e1", 0, running=True)
    account = Account(account.to_json())
    account.add(reading(30, cpu_s=6, memory_mb=100, up=3), "e1", 0, running=True)  # its uplinks' counters are new
    assert (account.cpu_s, account.running_s, account.received) == (6, 30, 53)
    assert account.memory_mb_s == 3000


def test_a_clock_that_was_set_back_takes_nothing_away() -> None:
    account = Account({})
    account.add(reading(10, cpu_s=5, memory_mb=1), "e1", 0, running=True)
    account.add(reading(5, cpu_s=6, memory_mb=1), "e1", 0, running=True)
    assert (account.running_s, account.memory_mb_s, account.cpu_s) == (10, 10, 6)


# -- the service


@dataclass
class Measured(FakeDriver):
    """``now`` is what every sandbox costs; one that was destroyed cannot be measured."""

    now: Usage = field(default_factory=lambda: Usage(10 * MEBIBYTE, 20 * MEBIBYTE, 1.5, 3, 4096))

    async def usage(self, sandbox_id: str) -> Usage:
        if sandbox_id not in self.specs:
            raise SandboxNotRunning("nothing runs")
        return self.now


async def usage_of(client: httpx.AsyncClient, sandbox_id: str) -> dict[str, float]:
    response = await client.get(f"/v1/sandboxes/{sandbox_id}/usage")
    assert response.status_code == 200, response.text
    return dict(response.json())


async def test_usage_of_a_running_sandbox_is_of_now(short_dir: Path) -> None:
    async with harness(short_dir, driver := Measured()) as cloche:
        sandbox_id = await cloche.sandbox()
        first = await usage_of(cloche.client, sandbox_id)
        assert (first["cpu_s"], first["processes"], first["disk_bytes"]) == (1.5, 3, 4096)
        assert (first["memory_bytes"], first["memory_peak_bytes"]) == (10 * MEBIBYTE, 20 * MEBIBYTE)
        assert first["uplink_received_bytes"] > 0  # hello and health
        assert first["uplink_sent_bytes"] > 0
        driver.now = Usage(MEBIBYTE, 30 * MEBIBYTE, 2.5, 4, 8192)
        second = await usage_of(cloche.client, sandbox_id)
        assert (second["cpu_s"], second["memory_peak_bytes"]) == (2.5, 30 * MEBIBYTE)
        assert second["running_s"] > first["running_s"] > 0
        assert second["memory_mb_s"] > first["memory_mb_s"] > 0


async def test_bytes_over_the_uplinks_are_counted(short_dir: Path) -> None:
    async with harness(short_dir, Measured()) as cloche:
        sandbox_id = await cloche.sandbox()
        before = await usage_of(cloche.client, sandbox_id)
        for _ in range(3):
            await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")
        after = await usage_of(cloche.client, sandbox_id)
        for way in ("uplink_received_bytes", "uplink_sent_bytes"):
            assert after[way] > before[way] + 100


async def test_looking_neither_wakes_nor_counts_as_activity(short_dir: Path) -> None:
    async with harness(short_dir, Measured()) as cloche:
        sandbox_id = await cloche.sandbox()
        before = (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["last_activity_at"]
        await usage_of(cloche.client, sandbox_id)
        assert (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["last_activity_at"] == before
        assert (await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/suspend")).status_code == 200
        shown = await usage_of(cloche.client, sandbox_id)
        assert (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == "suspended"
        assert (shown["cpu_s"], shown["memory_bytes"], shown["processes"]) == (1.5, 0, 0)
        assert shown["memory_peak_bytes"] == 20 * MEBIBYTE
        assert shown["disk_bytes"] > 0  # what was saved


async def test_two_lives_add_up(short_dir: Path) -> None:
    async with harness(short_dir, driver := Measured()) as cloche:
        sandbox_id = await cloche.sandbox()
        for change in ("suspend", "resume"):
            response = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{change}")
            assert response.status_code == 200, response.text
        driver.now = Usage(0, 0, 2.0, 1)
        assert (await usage_of(cloche.client, sandbox_id))["cpu_s"] == 3.5


async def test_the_usage_of_a_deleted_sandbox_is_in_the_list_of_the_deleted(short_dir: Path) -> None:
    async with harness(short_dir, Measured()) as cloche:
        sandbox_id = await cloche.sandbox()
        await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")
        assert (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/usage")).status_code == 410
        assert (await cloche.client.get("/v1/usage")).json()["items"] == []
        (item,) = (await cloche.client.get("/v1/usage?state=deleted")).json()["items"]
        assert (item["sandbox_id"], item["cpu_s"], item["memory_bytes"]) == (sandbox_id, 1.5, 0)


async def test_usage_is_listed_for_its_owner_in_pages(short_dir: Path) -> None:
    async with harness(short_dir, Measured()) as cloche, cloche.client_of("ann") as ann:
        ids = [(await ann.post("/v1/sandboxes", json={})).json()["id"] for _ in range(3)]
        other = await cloche.sandbox()
        first = (await ann.get("/v1/usage?limit=2")).json()
        second = (await ann.get("/v1/usage", params={"limit": 2, "page": first["next_page"]})).json()
        assert [item["sandbox_id"] for item in [*first["items"], *second["items"]]] == ids[::-1]
        assert second["next_page"] is None
        assert (await ann.get(f"/v1/sandboxes/{other}/usage")).status_code == 404
        assert (await ann.get("/v1/usage?owner=admin")).status_code == 403
        assert len((await cloche.client.get("/v1/usage")).json()["items"]) == 4
        assert (await ann.get("/v1/usage?limit=0")).status_code == 400


async def test_a_restart_of_the_server_loses_nothing_that_was_read(short_dir: Path) -> None:
    driver = Measured()
    async with harness(short_dir, driver) as cloche:
        sandbox_id = await cloche.sandbox()
        await usage_of(cloche.client, sandbox_id)
        # As the loop does. What a killed server has not stored is gone.
        await cloche.server.services.usage.read_all()
        before = await usage_of(cloche.client, sandbox_id)
    driver.now = Usage(10 * MEBIBYTE, 20 * MEBIBYTE, 2.0, 3)
    async with harness(short_dir, driver) as cloche:
        after = await usage_of(cloche.client, sandbox_id)
        assert after["cpu_s"] == 2.0
        assert after["uplink_received_bytes"] >= before["uplink_received_bytes"]
        assert after["running_s"] > before["running_s"]
        await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")


@pytest.mark.expected_logs("sandbox ended")
async def test_a_sandbox_that_ends_by_itself_is_measured_first(short_dir: Path) -> None:
    driver = Measured()
    async with harness(short_dir, driver) as cloche:
        sandbox_id = await cloche.sandbox()
        driver.now = Usage(0, MEBIBYTE, 9.0, 0)
        driver.end(sandbox_id, SandboxStatus(RunState.EXITED, ExitReason.EXIT, exit_code=1))
        await cloche.server.services.sandboxes.settle(sandbox_id, 60)
        row = cloche.server.services.sandboxes.store.get(sandbox_id)
        assert row is not None
        assert row.state is SandboxState.FAILED
        assert row.usage["cpu_s"] == 9.0
        assert row.usage["received"] > 0


@pytest.mark.expected_logs("usage of a life's end is lost", "usage could not be read")
async def test_a_sandbox_whose_usage_cannot_be_read_ends_all_the_same(short_dir: Path) -> None:
    @dataclass
    class Broken(Measured):
        async def usage(self, _sandbox_id: str) -> Usage:
            raise RuntimeError("no cgroup")

    async with harness(short_dir, Broken()) as cloche:
        sandbox_id = await cloche.sandbox()
        assert (await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")).status_code == 200
