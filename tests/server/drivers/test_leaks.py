"""A start that is cut off at any point leaves nothing that another process cannot find and remove."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cloche.errors import SandboxStartFailed
from cloche_server.drivers import OciDriver, RunState, open_drivers

from .harness import FULL, NOTHING, Traces, Uplink, make_spec, new_id, traces

KILL_POINTS = 25 if FULL else 6
"""Per driver, spread over the time a start takes."""

CREATORS = """
import asyncio, os, signal, sys
from dataclasses import dataclass
from pathlib import Path
from cloche_server.drivers import SandboxSpec, open_drivers

@dataclass
class Limits:
    cpus: float = 2.0
    memory_mb: int = 256
    max_processes: int = 64
    disk_mb: int = 64

name, root, rootfs, uplink = sys.argv[1:]
driver = open_drivers(Path(root, 'data'), Path(root, 'run'))[name]
for line in sys.stdin:
    spec = SandboxSpec(line.strip(), 'e', Path(rootfs), Limits(), Path(uplink), guest_argv=('/bin/sleep', '100'))
    pid = os.fork()
    if pid == 0:
        print(os.getpid(), flush=True)
        asyncio.run(driver.start(spec))
        print('started', flush=True)
        signal.pause()
    os.waitpid(pid, 0)
    print('gone', flush=True)
"""


class Creators:
    """Server processes, one after the other, each of which starts one sandbox. Forked, since an import takes longer."""

    def __init__(self, name: str, roots: Path, rootfs: Path, uplink: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CREATORS, name, str(roots), str(rootfs), str(uplink)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def start(self, sandbox_id: str) -> int:
        """The pid of the process that now starts it."""
        assert self._process.stdin is not None
        self._process.stdin.write(sandbox_id + "\n")
        self._process.stdin.flush()
        return int(self.read())

    def kill(self, pid: int) -> None:
        """And skip what it may have said before."""
        os.kill(pid, signal.SIGKILL)
        while self.read() != "gone":
            pass

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def creators(driver: OciDriver, roots: Path, rootfs: Path, uplink: Path) -> Iterator[Creators]:
    opened = Creators(driver.name, roots, rootfs, uplink)
    yield opened
    opened.close()


@pytest.fixture
def uplink(scratch: Path) -> Path:
    return scratch


def test_kill_9_of_a_creator_at_random_points(driver: OciDriver, roots: Path, creators: Creators) -> None:
    whole_s = _seconds_of_a_start(driver, creators)
    points = random.Random(driver.name)
    for _ in range(KILL_POINTS):
        sandbox_id = new_id()
        pid = creators.start(sandbox_id)
        time.sleep(points.uniform(0, whole_s * 1.1))
        creators.kill(pid)
        asyncio.run(_clean_as_a_new_server(driver.name, roots, sandbox_id))
        assert _traces_soon(sandbox_id, roots) == NOTHING
    deadline = time.monotonic() + 60
    while (strays := _stray_namespaces()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert strays == []


def _seconds_of_a_start(driver: OciDriver, creators: Creators) -> float:
    sandbox_id, begun = new_id(), time.monotonic()
    pid = creators.start(sandbox_id)
    assert creators.read() == "started"
    whole_s = time.monotonic() - begun
    creators.kill(pid)
    asyncio.run(driver.destroy(sandbox_id))
    return whole_s


async def _clean_as_a_new_server(name: str, roots: Path, sandbox_id: str) -> None:
    """As after a restart: whatever is listed and not known is destroyed. Runs while the start still goes on."""
    driver = open_drivers(roots / "data", roots / "run")[name]
    if sandbox_id in await driver.list():
        await driver.destroy(sandbox_id)
    assert sandbox_id not in await driver.list()
    driver.close()


def _traces_soon(sandbox_id: str, roots: Path) -> Traces:
    """A launcher that was about to join the cgroup finds none and ends by itself: a Python start and one failed open."""
    deadline = time.monotonic() + 60
    while (found := traces(sandbox_id, roots)) != NOTHING and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _stray_namespaces() -> list[str]:
    """Processes that hold a mount namespace with one of our stages in it, and are in no sandbox's cgroup: those of other
    sandboxes on this machine are in theirs, and one of these tests that was left would be there for `traces`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        with suppress(OSError):
            in_cgroup = "/cloche/" in path.with_name("cgroup").read_text()
            if not in_cgroup and " /mnt rw" in (text := path.read_text()) and " tmpfs cloche " in text:
                found.append(path.parent.name)
    return found


def test_a_sandbox_outlives_the_server_that_started_it(driver: OciDriver, roots: Path, creators: Creators) -> None:
    sandbox_id = new_id()
    server = creators.start(sandbox_id)
    assert creators.read() == "started"
    creators.kill(server)
    assert asyncio.run(driver.inspect(sandbox_id)).state is RunState.RUNNING
    asyncio.run(driver.destroy(sandbox_id))
    assert traces(sandbox_id, roots) == NOTHING


@pytest.mark.parametrize("delay_s", [0, 0.02, 0.05, 0.1, 0.2])
def test_destroy_during_start_ends_the_start(
    driver: OciDriver, roots: Path, rootfs: Path, uplink: Path, delay_s: float
) -> None:
    async def race() -> str:
        spec = make_spec(new_id(), rootfs, uplink)
        start = asyncio.create_task(driver.start(spec, asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(delay_s)
        await driver.destroy(spec.sandbox_id)
        with pytest.raises(SandboxStartFailed, match="destroyed while it started"):
            await start
        return spec.sandbox_id

    assert traces(asyncio.run(race()), roots) == NOTHING


def test_a_cancelled_start_leaves_nothing(driver: OciDriver, roots: Path, rootfs: Path, uplink: Path) -> None:
    async def cancel() -> str:
        spec = make_spec(new_id(), rootfs, uplink)
        start = asyncio.create_task(driver.start(spec, asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(0.08)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        return spec.sandbox_id

    assert traces(asyncio.run(cancel()), roots) == NOTHING


@pytest.mark.expected_logs("start . of sandbox")
def test_a_runtime_that_hangs_is_bounded_and_removed(
    roots: Path, rootfs: Path, uplink: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hanging = tmp_path / "runtime"
    hanging.write_text("#!/bin/sh\necho about to hang\nsleep 1000 &\nexec sleep 1000\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("CLOCHE_RUNC", str(hanging))
    monkeypatch.setattr("cloche_server.drivers._start.RUNTIME_BOUND_S", 3.0)
    monkeypatch.setattr("cloche_server.drivers._self_test.VERSION_BOUND_S", 1.0)
    driver = open_drivers(roots / "data", roots / "run")["runc"]
    spec = make_spec(new_id(), rootfs, uplink)
    with pytest.raises(SandboxStartFailed, match=r"(?s)2 attempts.*about to hang"):
        asyncio.run(driver.start(spec))
    assert traces(spec.sandbox_id, roots) == NOTHING
    driver.close()


def test_many_starts_and_stops_at_once_leave_nothing(
    driver: OciDriver, roots: Path, rootfs: Path, scratch: Path
) -> None:
    async def all_at_once() -> list[str]:
        specs = [make_spec(new_id(), rootfs, scratch) for _ in range(6)]
        await asyncio.gather(*(driver.start(spec) for spec in specs))
        await asyncio.gather(*(driver.destroy(spec.sandbox_id) for spec in specs for _ in range(2)))
        return [spec.sandbox_id for spec in specs]

    listener = Uplink(scratch)
    for sandbox_id in asyncio.run(all_at_once()):
        assert traces(sandbox_id, roots) == NOTHING
    listener.close()


def test_descriptors_are_given_back(driver: OciDriver, rootfs: Path, scratch: Path) -> None:
    async def cycle() -> None:
        spec = make_spec(new_id(), rootfs, scratch)
        await driver.start(spec)
        await driver.destroy(spec.sandbox_id)

    asyncio.run(cycle())
    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(cycle())
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_sandbox_is_in_no_session_and_no_group_of_the_server(
    driver: OciDriver, roots: Path, rootfs: Path, uplink: Path
) -> None:
    """A Ctrl-C in the server's terminal, or its hang-up, is none of a sandbox's business."""

    async def look() -> tuple[int, int]:
        spec = make_spec(new_id(), rootfs, uplink)
        await driver.start(spec)
        pid = int((roots / "run" / driver.name / spec.sandbox_id / "pid").read_text())
        ids = os.getpgid(pid), os.getsid(pid)
        await driver.destroy(spec.sandbox_id)
        return ids

    group, session = asyncio.run(look())
    assert group != os.getpgid(0)
    assert session != os.getsid(0)
