"""A new server over the state of an old one: what runs is found, what does not is said, what nobody knows is removed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cloche.models import SandboxState
from cloche_server.drivers import ExitReason, RunState, SandboxStatus
from cloche_server.ids import new_sandbox_id
from cloche_server.sandboxes import Recovered
from cloche_server.sandboxes._saved import SavedStates
from cloche_server.state import KeptAnswer

from .conftest import Harness, harness
from .fake_driver import FakeDriver


async def close_guests(cloche: Harness) -> None:
    for guest in list(cloche.driver.guests.values()):
        await guest.close()


async def test_running_sandboxes_are_found_again_and_their_guests_dial_again(short_dir: Path) -> None:
    driver = FakeDriver()
    async with harness(short_dir, driver) as old:
        sandbox_id = await old.sandbox(name="box")
    async with harness(short_dir, driver) as new:
        assert new.server.recovered == Recovered(adopted=[sandbox_id])
        assert new.server.made_first_key is False
        response = await new.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")
        assert response.json()["target"] == "/v1/contexts"
        assert (await new.client.get("/v1/sandboxes/by-name/box")).json()["state"] == "running"
        await new.client.delete(f"/v1/sandboxes/{sandbox_id}")
        assert driver.specs == {}


async def test_one_that_ended_meanwhile_is_failed_with_its_reason(short_dir: Path) -> None:
    driver = FakeDriver()
    async with harness(short_dir, driver) as old:
        ended, lost = await old.sandbox(), await old.sandbox()
        await close_guests(old)
    driver.end(ended, SandboxStatus(RunState.EXITED, ExitReason.EXIT, exit_code=5))
    driver.ends.pop(lost)
    async with harness(short_dir, driver) as new:
        assert sorted(new.server.recovered.failed) == sorted([ended, lost])
        assert (await new.client.get(f"/v1/sandboxes/{ended}")).json()["failure"]["exit_code"] == 5
        assert (await new.client.get(f"/v1/sandboxes/{lost}")).json()["failure"]["reason"] == "lost"
        assert driver.specs == {}
        assert list(new.settings.uplinks_dir.iterdir()) == []


async def test_a_half_made_one_is_removed_and_its_name_and_key_are_free(short_dir: Path) -> None:
    driver = FakeDriver()
    async with harness(short_dir, driver) as old:
        sandbox_id = await old.sandbox(name="box")
        store = old.server.services.sandboxes.store
        row = store.get(sandbox_id)
        assert row is not None
        store.update(row, state=SandboxState.CREATING, started_us=None)
        old.server.services.creates._keyed._kept.record("admin", "create", "k", KeptAnswer("h", {"id": sandbox_id}))
        await close_guests(old)
    async with harness(short_dir, driver) as new:
        assert new.server.recovered == Recovered(failed=[sandbox_id], removed=[sandbox_id])
        got = (await new.client.get(f"/v1/sandboxes/{sandbox_id}")).json()
        assert (got["state"], got["failure"]["reason"]) == ("failed", "start_failed")
        made = await new.client.post("/v1/sandboxes", json={"name": "box"}, headers={"Idempotency-Key": "k"})
        assert made.status_code == 201
        await close_guests(new)


async def test_what_no_row_knows_is_removed(short_dir: Path) -> None:
    driver = FakeDriver()
    async with harness(short_dir, driver) as old:
        sandbox_id = await old.sandbox()
        await close_guests(old)
    stray = new_sandbox_id()
    driver.specs[stray] = replace(driver.specs[sandbox_id], sandbox_id=stray)
    (short_dir / "run/uplinks" / stray).mkdir()
    async with harness(short_dir, driver) as new:
        assert new.server.recovered.removed == [stray]
        assert not (new.settings.uplinks_dir / stray).exists()
        assert list(driver.specs) == [sandbox_id]


@pytest.mark.expected_logs("could not be removed")
async def test_a_stray_that_cannot_be_removed_does_not_keep_the_server_down(short_dir: Path) -> None:
    class Stubborn(FakeDriver):
        async def destroy(self, sandbox_id: str) -> None:
            raise OSError("busy")

        async def list(self) -> list[str]:
            return ["x" * 20]

    async with harness(short_dir, Stubborn()) as cloche:
        assert cloche.server.recovered.removed == []
        assert (await cloche.client.get("/v1/health")).status_code == 200


async def test_a_sandbox_of_a_driver_that_is_not_here_any_more_is_failed(short_dir: Path) -> None:
    async with harness(short_dir) as old:
        sandbox_id = await old.sandbox()
        await close_guests(old)
    async with harness(short_dir, FakeDriver(name="gvisor")) as new:
        failure = (await new.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["failure"]
        assert failure["message"] == "this server has no driver runc any more"


@pytest.mark.parametrize(("suffix", "state"), [("", "suspended"), (".tmp", "failed"), (".gone", "failed")])
async def test_half_written_and_half_removed_states_are_no_saved_sandbox(
    short_dir: Path, suffix: str, state: str
) -> None:
    """The machine lost its power in a suspend: no process is left. Only what has the name of the sandbox is whole."""
    driver = FakeDriver(capabilities=frozenset({"memory_snapshot", "file_snapshot"}))
    async with harness(short_dir, driver) as old:
        sandbox_id = await old.sandbox()
        services = old.server.services.sandboxes
        row = services.store.get(sandbox_id)
        assert row is not None
        directory = services.saved.directory(sandbox_id)
        await driver.checkpoint(sandbox_id, directory, keep_running=True)
        directory.rename(directory.with_name(directory.name + suffix))
        await close_guests(old)
    driver.specs.clear()
    driver.ends.clear()
    services.store.update(row, state=SandboxState.SUSPENDING)
    async with harness(short_dir, driver) as new:
        assert (await new.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == state
        left = new.server.services.sandboxes.saved.on_disk()
        assert left == ([sandbox_id] if state == "suspended" else [])


def test_a_saved_state_that_cannot_be_removed_at_once_is_not_seen_any_more(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = SavedStates(short_dir / "suspended")
    states.prepare()
    (states.directory("a") / "inside").mkdir(parents=True)
    with monkeypatch.context() as failing:
        failing.setattr("shutil.rmtree", lambda *_, **__: None)
        states.remove("a")
    assert not states.exists("a")
    for name in states.on_disk():  # as at the next start
        states.remove(name)
    assert states.on_disk() == []
