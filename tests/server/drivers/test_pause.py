"""Pause and resume, with both kinds of freezer; what was frozen by a server that died is not frozen for ever."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from cloche.errors import InternalError, SandboxNotRunning
from cloche_server.drivers import OciDriver, RunState, open_drivers
from cloche_server.drivers._cgroup import Cgroup, detect_layout
from cloche_server.drivers._cgroup_files import Freezer

from .harness import NOTHING, Sandbox, running, traces
from .test_checkpoint import BEAT, beat, next_beat

V1_FREEZER = Path("/sys/fs/cgroup/freezer")

FREEZERS = [
    pytest.param(None, id="as detected"),
    pytest.param(
        Freezer(1, V1_FREEZER),
        id="version 1",
        marks=pytest.mark.skipif(not V1_FREEZER.is_dir(), reason="no freezer of version 1 is mounted here"),
    ),
]


@pytest.fixture(params=FREEZERS)
def freezing(driver: OciDriver, request: pytest.FixtureRequest) -> OciDriver:
    """Both drivers, over both kinds of freezer."""
    if request.param is None:
        return driver
    return OciDriver(driver._runtime, driver._layout, replace(detect_layout(), freezer=request.param))


@pytest.fixture
def sandbox(freezing: OciDriver, rootfs: Path, scratch: Path) -> Iterator[Sandbox]:
    with running(freezing, rootfs, scratch / "source") as started:
        yield started


def cpu_seconds(sandbox: Sandbox) -> float:
    return asyncio.run(sandbox.driver.usage(sandbox.id)).cpu_seconds


def state(sandbox: Sandbox) -> RunState:
    return asyncio.run(sandbox.driver.inspect(sandbox.id)).state


def test_a_paused_sandbox_stands_still_and_goes_on_where_it_was(sandbox: Sandbox) -> None:
    sandbox.check(BEAT)
    connection, _ = sandbox.uplink.accept()
    with connection:
        asyncio.run(sandbox.driver.pause(sandbox.id))
        assert state(sandbox) is RunState.PAUSED
        used = cpu_seconds(sandbox)
        connection.sendall(json.dumps({"code": "print('late')", "user": False, "timeout_s": 10}).encode() + b"\n")
        connection.settimeout(0.4)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        assert cpu_seconds(sandbox) - used < 0.02
        asyncio.run(sandbox.driver.resume(sandbox.id))
        assert state(sandbox) is RunState.RUNNING
        connection.settimeout(30)
        assert b"late" in connection.recv(4096)
    first = beat(sandbox)
    assert next_beat(sandbox, first)[0] == first[0]


def test_both_may_be_said_twice(sandbox: Sandbox) -> None:
    for _ in range(2):
        asyncio.run(sandbox.driver.pause(sandbox.id))
        assert state(sandbox) is RunState.PAUSED
    for _ in range(2):
        asyncio.run(sandbox.driver.resume(sandbox.id))
        assert state(sandbox) is RunState.RUNNING
    assert sandbox.check("print('alive')") == "alive"


def test_a_paused_sandbox_is_removed_like_any_other(sandbox: Sandbox, roots: Path) -> None:
    asyncio.run(sandbox.driver.pause(sandbox.id))
    begun = time.monotonic()
    asyncio.run(sandbox.driver.destroy(sandbox.id))
    assert time.monotonic() - begun < 20
    assert traces(sandbox.id, roots) == NOTHING


def test_a_later_server_finds_it_paused_and_resumes_it(sandbox: Sandbox, roots: Path) -> None:
    asyncio.run(sandbox.driver.pause(sandbox.id))
    later = OciDriver(sandbox.driver._runtime, sandbox.driver._layout, sandbox.driver._cgroups)
    status = asyncio.run(later.inspect(sandbox.id))
    assert (status.state, status.is_alive) == (RunState.PAUSED, True)
    asyncio.run(later.resume(sandbox.id))
    later.close()
    assert sandbox.check("print('alive')") == "alive"


def test_the_end_of_a_paused_sandbox_is_noticed(sandbox: Sandbox) -> None:
    async def wait_while_paused() -> None:
        await sandbox.driver.pause(sandbox.id)
        waiting = asyncio.create_task(sandbox.driver.wait_exit(sandbox.id))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        pid = int((sandbox.driver._layout.of(sandbox.id).pid).read_text())
        os.kill(pid, signal.SIGKILL)
        sandbox.driver._cgroup(sandbox.id).thaw()  # version 1 keeps even a KILL until then
        assert (await asyncio.wait_for(waiting, 30)).state is RunState.EXITED

    asyncio.run(wait_while_paused())


def test_one_that_was_killed_while_it_stands_still_is_known_to_die(sandbox: Sandbox) -> None:
    """With cgroups of version 1 the signal waits; with version 2 it ends at once."""
    driver = sandbox.driver
    asyncio.run(driver.pause(sandbox.id))
    assert not driver.is_dying(sandbox.id)
    assert asyncio.run(driver.inspect(sandbox.id)).state is RunState.PAUSED
    os.kill(int(driver._layout.of(sandbox.id).pid.read_text()), signal.SIGKILL)
    assert driver.is_dying(sandbox.id) or not asyncio.run(driver.inspect(sandbox.id)).is_alive
    with suppress(SandboxNotRunning):
        asyncio.run(driver.resume(sandbox.id))
    assert asyncio.run(asyncio.wait_for(driver.wait_exit(sandbox.id), 60)).state is RunState.EXITED


def save_paused(sandbox: Sandbox, directory: Path) -> float:
    """When it was paused. A dial may be under way then: it goes on for a moment, and is paused again."""
    for _ in range(20):
        asyncio.run(sandbox.driver.pause(sandbox.id))
        paused_at = time.time()
        try:
            asyncio.run(sandbox.driver.checkpoint(sandbox.id, directory, keep_running=True))
        except InternalError as error:
            if error.details.get("reason") != "open_uplinks":
                raise
        else:
            return paused_at
        asyncio.run(sandbox.driver.resume(sandbox.id))
        time.sleep(0.05)
    pytest.fail("it has an open uplink")


def test_a_paused_sandbox_can_be_saved_and_stays_paused(sandbox: Sandbox, scratch: Path) -> None:
    sandbox.uplink.close()
    save_paused(sandbox, scratch / "saved")
    assert state(sandbox) is RunState.PAUSED
    asyncio.run(sandbox.driver.checkpoint(sandbox.id, scratch / "again", keep_running=False))
    assert state(sandbox) is RunState.UNKNOWN
    sandbox.uplink = type(sandbox.uplink)(sandbox.uplink.directory)


TICKS = """
import os, struct, time
if os.fork() == 0:
    os.setsid()
    for fd in range(3): os.close(fd)
    with open("/dev/shm/ticks", "wb", buffering=0) as file:
        while True:
            file.write(struct.pack("=d", time.time()))
            time.sleep(0.001)
while not os.path.exists("/dev/shm/ticks"): time.sleep(0.01)
"""
"""A program that writes down the time, at most once a millisecond."""

COUNT = """
import struct
stamps = [stamp for stamp, in struct.iter_unpack("=d", open("/dev/shm/ticks", "rb").read()[:-8])]
print(sum({begin} < stamp < {end} for stamp in stamps), len(stamps))
"""

MAX_TICKS = 200
"""Of a paused sandbox that is saved: some milliseconds around the instant, and what a busy machine adds to them."""


def test_a_program_in_a_paused_sandbox_hardly_moves_while_it_is_saved(
    freezing: OciDriver, rootfs: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gVisor saves itself and has to run for that; nothing of runc runs. Where this process is held up between the two, the
    program goes on for as long, and no longer."""
    thawed_ms = thawed_time_of(monkeypatch)
    with running(freezing, rootfs, scratch / "source") as sandbox:
        sandbox.check(TICKS)
        sandbox.uplink.close()
        begin = save_paused(sandbox, scratch / "saved")
        assert state(sandbox) is RunState.PAUSED
        time.sleep(0.3)  # as long as it ticks it would be seen
        end = time.time()
        while_saved_ms = thawed_ms()
        asyncio.run(freezing.resume(sandbox.id))
        sandbox.uplink = type(sandbox.uplink)(sandbox.uplink.directory)
        moved, all_ticks = map(int, sandbox.check(COUNT.format(begin=begin + 0.002, end=end)).split())
    assert moved <= (max(MAX_TICKS, while_saved_ms) if freezing.name == "gvisor" else 0), moved
    assert all_ticks > moved


def thawed_time_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Of the last time in which any cgroup was thawed and then frozen, in milliseconds."""
    thaw, freeze, times = Cgroup.thaw, Cgroup.freeze, [0.0, 0.0]

    def thawing(cgroup: Cgroup) -> None:
        times[:] = [time.monotonic(), 0.0]
        thaw(cgroup)

    async def freezing(cgroup: Cgroup) -> None:
        await freeze(cgroup)
        times[1] = times[1] or time.monotonic()

    def last_ms() -> float:
        return max(0.0, times[1] - times[0]) * 1000

    monkeypatch.setattr(Cgroup, "thaw", thawing)
    monkeypatch.setattr(Cgroup, "freeze", freezing)
    return last_ms


HANGS_WHILE_FROZEN = """
import asyncio, sys
from pathlib import Path
from cloche_server.drivers import _saving, open_drivers

async def hang(*_):
    print('frozen', flush=True)
    await asyncio.sleep(1000)

_saving.run_bounded = hang
name, root, sandbox_id, directory = sys.argv[1:]
driver = open_drivers(Path(root, 'data'), Path(root, 'run'))[name]
asyncio.run(driver.checkpoint(sandbox_id, Path(directory), keep_running=True))
"""


def test_frozen_by_a_server_that_died_it_goes_on_when_the_next_one_looks(
    drivers: dict[str, OciDriver], roots: Path, rootfs: Path, scratch: Path
) -> None:
    with running(drivers["runc"], rootfs, scratch / "source") as sandbox:
        words = [sys.executable, "-c", HANGS_WHILE_FROZEN, "runc", str(roots), sandbox.id, str(scratch / "saved")]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "frozen\n"
            # Who looks while it is saved sees it run, and leaves it alone.
            assert state(sandbox) is RunState.RUNNING
            assert drivers["runc"]._cgroup(sandbox.id).is_frozen()
            server.kill()
        later = open_drivers(roots / "data", roots / "run")["runc"]
        assert asyncio.run(later.inspect(sandbox.id)).state is RunState.RUNNING
        later.close()
        assert sandbox.check("print('alive')") == "alive"
        assert not drivers["runc"]._layout.of(sandbox.id).saving.exists()
