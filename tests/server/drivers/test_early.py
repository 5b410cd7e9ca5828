"""A start that begins before its checkpoint is written: it goes on when that is whole, and leaves nothing when it never is."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cloche.errors import InvalidRequest, SandboxNotRunning, SandboxStartFailed, StorageFull
from cloche_server.drivers import OciDriver, RunState, SandboxSpec, WhenSaved
from cloche_server.drivers._console import command_line
from cloche_server.drivers._control import until_listening

from .harness import NOTHING, Limits, Sandbox, Uplink, make_spec, new_id, running, traces
from .test_checkpoint import BEAT, beat, next_beat, save

MADE_BOUND_S = 60.0


@pytest.fixture
def gvisor(drivers: dict[str, OciDriver]) -> OciDriver:
    return drivers["gvisor"]


@pytest.fixture
def source(gvisor: OciDriver, rootfs: Path, scratch: Path) -> Iterator[Sandbox]:
    with running(gvisor, rootfs, scratch / "source") as sandbox:
        sandbox.check(BEAT)
        yield sandbox


@pytest.fixture
def child(gvisor: OciDriver, scratch: Path) -> Iterator[Sandbox]:
    sandbox = Sandbox(gvisor, Uplink(scratch / "child"))
    yield sandbox
    asyncio.run(gvisor.destroy(sandbox.id))
    sandbox.uplink.close()


@asynccontextmanager
async def begun(driver: OciDriver, spec: SandboxSpec) -> AsyncIterator[tuple[asyncio.Task[None], WhenSaved]]:
    """A start for which the runtime has made everything that needs no checkpoint."""
    saved: WhenSaved = asyncio.get_running_loop().create_future()
    start = asyncio.create_task(driver.start(spec, saved=saved))
    await made(driver, spec.sandbox_id)
    try:
        yield start, saved
    finally:
        start.cancel()
        await asyncio.wait([start])


async def made(driver: OciDriver, sandbox_id: str) -> None:
    async with asyncio.timeout(MADE_BOUND_S):
        while (await driver.inspect(sandbox_id)).state is not RunState.RUNNING:
            await asyncio.sleep(0.01)


def spec_of(child: Sandbox, rootfs: Path, checkpoint: Path, **changes: object) -> SandboxSpec:
    return make_spec(child.id, rootfs, child.uplink.directory, checkpoint=checkpoint, **changes)


def test_it_goes_on_where_its_source_was_when_that_is_saved(
    source: Sandbox, child: Sandbox, rootfs: Path, scratch: Path
) -> None:
    async def early() -> None:
        async with begun(child.driver, spec_of(child, rootfs, scratch / "saved")) as (start, saved):
            assert not (scratch / "saved").exists()
            await asyncio.to_thread(save, source, scratch / "saved")
            assert not start.done()
            saved.set_result(None)
            await start

    token, _ = beat(source)
    asyncio.run(early())
    first = beat(child)
    assert first[0] == next_beat(child, first)[0] == token
    shares = Path(f"/sys/fs/cgroup/cpu/cloche/{child.id}/cpu.shares")
    assert not shares.exists() or shares.read_text().strip() == "1024"


def test_it_leaves_nothing_when_its_source_cannot_be_saved(
    child: Sandbox, rootfs: Path, scratch: Path, roots: Path
) -> None:
    async def early() -> None:
        async with begun(child.driver, spec_of(child, rootfs, scratch / "saved")) as (start, saved):
            saved.set_exception(StorageFull("the disk is full"))
            with pytest.raises(StorageFull):
                await start

    asyncio.run(early())
    assert traces(child.id, roots) == NOTHING


def test_a_checkpoint_that_does_not_fit_is_refused_once_it_is_there(
    source: Sandbox, child: Sandbox, rootfs: Path, scratch: Path, roots: Path
) -> None:
    async def early() -> None:
        spec = spec_of(child, rootfs, scratch / "saved", resources=Limits(disk_mb=128))
        async with begun(child.driver, spec) as (start, saved):
            await asyncio.to_thread(save, source, scratch / "saved")
            saved.set_result(None)
            with pytest.raises(InvalidRequest, match="disk of 96 MiB, not 128"):
                await start

    asyncio.run(early())
    assert traces(child.id, roots) == NOTHING


@pytest.mark.expected_logs("start . of sandbox")
def test_a_checkpoint_that_is_not_one_is_tried_twice_and_leaves_nothing(
    source: Sandbox, child: Sandbox, rootfs: Path, scratch: Path, roots: Path
) -> None:
    async def early() -> None:
        async with begun(child.driver, spec_of(child, rootfs, scratch / "saved")) as (start, saved):
            await asyncio.to_thread(save, source, scratch / "saved")
            state = scratch / "saved/checkpoint.img"
            state.write_bytes(bytes(state.stat().st_size))
            saved.set_result(None)
            with pytest.raises(SandboxStartFailed, match="2 attempts"):
                await start

    asyncio.run(early())
    assert traces(child.id, roots) == NOTHING


def test_it_can_be_destroyed_while_it_waits(child: Sandbox, rootfs: Path, scratch: Path, roots: Path) -> None:
    async def early() -> None:
        async with begun(child.driver, spec_of(child, rootfs, scratch / "saved")) as (start, _):
            await child.driver.destroy(child.id)
            with pytest.raises(SandboxStartFailed, match="destroyed while it started"):
                await start

    asyncio.run(early())
    assert traces(child.id, roots) == NOTHING


@pytest.mark.expected_logs("start 1 of sandbox")
def test_a_runtime_that_fails_when_all_but_its_last_step_is_done_is_tried_again_at_once(
    child: Sandbox, rootfs: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when its source is saved, which may take long."""
    killed: list[int] = []

    async def listening_and_killed(control: Path, making: asyncio.Task[None]) -> None:
        await until_listening(control, making)
        for pid in child.driver._cgroup(child.id).pids() if not killed else ():
            if b"\0create\0" in command_line(pid):  # it writes the number of the first process down, and ends
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    async def early() -> None:
        async with begun(child.driver, spec_of(child, rootfs, scratch / "saved")):
            assert killed

    monkeypatch.setattr("cloche_server.drivers._start.until_listening", listening_and_killed)
    asyncio.run(early())


SERVER = """
    import asyncio, sys
    from pathlib import Path
    from cloche_server.drivers import open_drivers
    from tests.server.drivers.harness import make_spec

    async def main() -> None:
        roots, rootfs, uplink, sandbox_id = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
        driver = open_drivers(roots / "data", roots / "run")["gvisor"]
        spec = make_spec(sandbox_id, rootfs, uplink, checkpoint=uplink / "never")
        await driver.start(spec, saved=asyncio.get_running_loop().create_future())

    asyncio.run(main())
"""


def test_a_new_server_removes_what_a_killed_one_has_half_made(
    child: Sandbox, rootfs: Path, scratch: Path, roots: Path
) -> None:
    """It stands there without a process inside, and never reads what is not there."""
    arguments = (str(roots), str(rootfs), str(child.uplink.directory), child.id)
    server = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SERVER), *arguments])
    try:
        asyncio.run(made(child.driver, child.id))
    finally:
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
    assert child.id in asyncio.run(child.driver.list())
    with pytest.raises(TimeoutError):
        child.uplink.wait_for_dial(0.2)
    asyncio.run(child.driver.destroy(child.id))
    assert traces(child.id, roots) == NOTHING


def test_without_memory_a_start_waits_for_the_files(
    drivers: dict[str, OciDriver], rootfs: Path, scratch: Path, roots: Path
) -> None:
    driver, uplink, sandbox_id = drivers["runc"], Uplink(scratch / "child"), new_id()

    async def early(source: Sandbox) -> None:
        saved: WhenSaved = asyncio.get_running_loop().create_future()
        spec = make_spec(sandbox_id, rootfs, uplink.directory, checkpoint=scratch / "saved")
        start = asyncio.create_task(driver.start(spec, saved=saved))
        await asyncio.to_thread(save, source, scratch / "saved")
        with pytest.raises(SandboxNotRunning):
            await driver.usage(sandbox_id)
        saved.set_result(None)
        await start

    with running(driver, rootfs, scratch / "source") as source:
        source.check("open('/workspace/f', 'w').write('saved')")
        asyncio.run(early(source))
        child = Sandbox(driver, uplink, sandbox_id)
        assert child.check("print(open('/workspace/f').read())") == "saved"
    asyncio.run(driver.destroy(sandbox_id))
    uplink.close()
    assert traces(sandbox_id, roots) == NOTHING
