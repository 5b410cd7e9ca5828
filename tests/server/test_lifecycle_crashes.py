"""A server that is killed at any moment of a suspend, stop, resume or pause: nothing is lost, nothing is left over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from .conftest import Harness, harness
from .crash_points import CrashPoints, Point
from .fake_driver import FakeDriver

ALL = FakeDriver.capabilities
FILES_ONLY = ALL - {"memory_snapshot"}

LASTING = {
    "suspend": {"running", "suspended"},
    "stop": {"running", "stopped"},
    "pause": {"running", "paused"},
    "resume": {"running", "suspended", "stopped", "paused"},
}


@pytest.fixture
def copies() -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        yield Path(directory)


async def crash(short_dir: Path, copies: Path, steps: list[str], capabilities: frozenset[str]) -> CrashPoints:
    """Every moment of the last of ``steps``."""
    points = CrashPoints(short_dir, copies, capabilities)
    async with harness(short_dir, FakeDriver(capabilities=capabilities)) as cloche:
        sandbox_id = await cloche.sandbox(name="box")
        for step in steps[:-1]:
            assert (await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{step}")).status_code == 200
        points.watch(cloche)
        assert (await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{steps[-1]}")).status_code == 200
        for guest in list(cloche.driver.guests.values()):
            await guest.close()
    return points


@pytest.mark.expected_logs("uplink refused")
@pytest.mark.parametrize(
    ("steps", "capabilities"),
    [
        (["suspend"], ALL),
        (["stop"], ALL),
        (["stop"], FILES_ONLY),
        (["pause"], ALL),
        (["pause", "suspend"], ALL),
        (["suspend", "resume"], ALL),
        (["stop", "resume"], ALL),
        (["stop", "resume"], FILES_ONLY),
        (["pause", "resume"], ALL),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "memory" if value is ALL else "files",
)
async def test_a_kill_at_any_moment_loses_nothing(
    short_dir: Path, copies: Path, steps: list[str], capabilities: frozenset[str]
) -> None:
    points = await crash(short_dir, copies, steps, capabilities)
    assert len(points.points) > 1
    for point in points.points:
        async with points.after(point) as cloche:
            await check(cloche, point, LASTING[steps[-1]] | ({"paused"} if steps[0] == "pause" else set()))


async def check(cloche: Harness, point: Point, lasting: set[str]) -> None:
    """A legal state that fits what is there; and whatever it is, the next call finds the sandbox in it."""
    [sandbox] = (await cloche.client.get("/v1/sandboxes")).json()["items"]
    sandbox_id, state = sandbox["id"], sandbox["state"]
    assert state in lasting, (point.where, sandbox)
    alive = state in ("running", "paused")
    assert list(cloche.driver.specs) == ([sandbox_id] if alive else []), point.where
    assert cloche.server.services.sandboxes.saved.on_disk() == ([] if alive else [sandbox_id]), point.where
    call = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/contexts/default/interrupt")
    assert call.status_code == 200, (point.where, state, call.text)
    assert (await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"] == "running"
