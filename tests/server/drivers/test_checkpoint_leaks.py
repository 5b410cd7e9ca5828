"""A server or a runtime's command that is killed while it saves or restores: the source goes on, nothing is left over."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cloche.errors import InternalError
from cloche_server.drivers import OciDriver, RunState, open_drivers
from cloche_server.drivers._checkpoint import read_record
from cloche_server.drivers._unsettled import writes_a_checkpoint

from .harness import FULL, NOTHING, Sandbox, new_id, running, traces

KILL_POINTS = 15 if FULL else 5
"""Per driver and test, spread over the time the work takes."""

SERVERS = """
import asyncio, os, signal, sys
from dataclasses import dataclass
from pathlib import Path
from cloche_server.drivers import SandboxSpec, open_drivers
from cloche_server.drivers._cgroup import Cgroup

@dataclass
class Limits:
    cpus: float = 2.0
    memory_mb: int = 384
    max_processes: int = 96
    disk_mb: int = 96

name, root, rootfs, uplink, work = sys.argv[1:]
driver = open_drivers(Path(root, 'data'), Path(root, 'run'))[name]
if work == 'keep memory':
    Cgroup.settle_memory = lambda *_: signal.pause()
for line in sys.stdin:
    sandbox_id, directory = line.split()
    spec = SandboxSpec(sandbox_id, 'e', Path(rootfs), Limits(), Path(uplink), checkpoint=Path(directory))
    pid = os.fork()
    if pid == 0:
        print(os.getpid(), flush=True)
        save = lambda: driver.checkpoint(sandbox_id, Path(directory), keep_running=work != 'suspend')
        asyncio.run(driver.start(spec) if work == 'restore' else save())
        print('done', flush=True)
        signal.pause()
    os.waitpid(pid, 0)
    print('gone', flush=True)
"""


class Servers:
    """Server processes, one after the other, that ``save``, ``suspend`` or ``restore``. Forked: an import takes longer.
    ``keep memory``: they save, and never take back the memory that this was given."""

    def __init__(self, work: str, driver: OciDriver, roots: Path, rootfs: Path, uplink: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVERS, driver.name, str(roots), str(rootfs), str(uplink), work],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def begin(self, sandbox_id: str, directory: Path) -> int:
        """The pid of the process that now works."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{sandbox_id} {directory}\n")
        self._process.stdin.flush()
        return int(self.read())

    def kill(self, pid: int) -> bool:
        """True when it had said that it was done."""
        os.kill(pid, signal.SIGKILL)
        done = False
        while (word := self.read()) != "gone":
            done = done or word == "done"
        return done

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def source(driver: OciDriver, rootfs: Path, scratch: Path) -> Iterator[Sandbox]:
    """With 24 MB in its files and as much in its memory, so that saving takes a while. Nobody listens to it."""
    with running(driver, rootfs, scratch / "source") as sandbox:
        sandbox.check("import os; open('/workspace/big', 'wb').write(os.urandom(24 << 20))")
        sandbox.uplink.close()
        yield sandbox


def listen_and_ask(sandbox: Sandbox) -> str:
    sandbox.uplink = type(sandbox.uplink)(sandbox.uplink.directory)
    try:
        return sandbox.check("import os; print(os.stat('/workspace/big').st_size)")
    finally:
        sandbox.uplink.close()


def _as_a_new_server(name: str, roots: Path) -> OciDriver:
    return open_drivers(roots / "data", roots / "run")[name]


def test_whose_removal_has_begun_does_not_run(
    driver: OciDriver, roots: Path, source: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed processes are seen for a moment. Taken for a running sandbox, what was saved of it would be thrown away."""
    dying, later = (_as_a_new_server(driver.name, roots) for _ in range(2))
    assert asyncio.run(later.inspect(source.id)).state is RunState.RUNNING

    async def die(*_: object) -> None:
        raise InternalError("killed here")

    monkeypatch.setattr("cloche_server.drivers._oci_driver.remove_cgroup", die)
    with pytest.raises(InternalError):
        asyncio.run(dying.destroy(source.id))
    monkeypatch.undo()
    assert asyncio.run(later.inspect(source.id)).state is RunState.UNKNOWN
    assert source.id in asyncio.run(later.list())
    asyncio.run(later.destroy(source.id))
    assert traces(source.id, roots / "run", roots / "data") == NOTHING
    dying.close()
    later.close()


@pytest.mark.parametrize("work", ["save", "suspend"])
def test_kill_9_of_a_server_that_saves(
    driver: OciDriver, roots: Path, rootfs: Path, source: Sandbox, scratch: Path, work: str
) -> None:
    """The source runs, and a new server sees it run; or it was suspended, and all of it is in the directory."""
    servers = Servers(work, driver, roots, rootfs, scratch)
    points, whole_s = random.Random(driver.name + work), 0.3
    try:
        for turn in range(KILL_POINTS):
            pid = servers.begin(source.id, scratch / f"saved-{turn}")
            time.sleep(points.uniform(0, whole_s))
            servers.kill(pid)
            if (scratch / f"saved-{turn}").exists() and work == "suspend":
                read_record(scratch / f"saved-{turn}")  # what has its name is whole
            later = _as_a_new_server(driver.name, roots)
            status = asyncio.run(later.inspect(source.id))
            if status.state is not RunState.RUNNING:
                # Removal had begun: only after everything was written. What is left of it, the new server removes.
                assert work == "suspend", status
                assert (scratch / f"saved-{turn}" / "checkpoint.json").exists()
                asyncio.run(later.destroy(source.id))
                assert traces(source.id, roots / "run", roots / "data") == NOTHING
                later.close()
                return
            assert listen_and_ask(source) == str(24 << 20)
            assert source.id in asyncio.run(later.list())
            later.close()
            _gone_soon(source.id)
    finally:
        servers.close()


def test_the_memory_limit_that_a_killed_server_left_too_high_is_lowered(
    drivers: dict[str, OciDriver], roots: Path, rootfs: Path, scratch: Path
) -> None:
    """The runtime ends the save by itself; the next server waits for that, and takes back what the save was given."""
    with running(drivers["gvisor"], rootfs, scratch / "source") as source:
        source.check("import os; open('/workspace/big', 'wb').write(os.urandom(24 << 20))")
        source.uplink.close()
        cgroup, paths = source.driver._cgroup(source.id), source.driver._layout.of(source.id)
        normal_bytes = json.loads(paths.orders.read_text())["memory_bytes"]
        assert not cgroup.has_extra_memory(normal_bytes)
        servers = Servers("keep memory", source.driver, roots, rootfs, scratch)
        pid = servers.begin(source.id, scratch / "saved")
        _until(lambda: cgroup.has_extra_memory(normal_bytes))
        servers.kill(pid)
        servers.close()
        assert cgroup.has_extra_memory(normal_bytes)

        async def look() -> None:
            later = _as_a_new_server("gvisor", roots)
            assert (await later.inspect(source.id)).state is RunState.RUNNING
            async with asyncio.timeout(60):
                while cgroup.has_extra_memory(normal_bytes):
                    await asyncio.sleep(0.05)
            later.close()

        asyncio.run(look())
        assert listen_and_ask(source) == str(24 << 20)


def test_it_is_not_lowered_while_the_runtime_still_writes(tmp_path: Path) -> None:
    assert not writes_a_checkpoint(os.getpid())
    with (tmp_path / "checkpoint.img").open("wb"):
        assert writes_a_checkpoint(os.getpid())
    assert not writes_a_checkpoint(os.getpid())
    assert not writes_a_checkpoint(1 << 30)


def _until(is_true: Callable[[], bool], bound_s: float = 60) -> None:
    deadline = time.monotonic() + bound_s
    while not is_true():
        assert time.monotonic() < deadline


def _gone_soon(sandbox_id: str) -> None:
    """No command that saves it is left: it dies with its server."""
    deadline = time.monotonic() + 60
    while any(sandbox_id in line for line in _saving_commands()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [line for line in _saving_commands() if sandbox_id in line]


def _saving_commands() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"checkpoint" in words or words[0] == b"/bin/cp":
                yield b" ".join(words).decode(errors="replace")


def test_kill_9_of_a_server_that_restores(
    driver: OciDriver, roots: Path, rootfs: Path, source: Sandbox, scratch: Path
) -> None:
    asyncio.run(driver.checkpoint(source.id, scratch / "saved", keep_running=True))
    before = sorted((file.name, file.stat().st_size) for file in (scratch / "saved").iterdir())
    servers = Servers("restore", driver, roots, rootfs, scratch)
    points = random.Random(driver.name)
    try:
        for _ in range(KILL_POINTS):
            sandbox_id = new_id()
            pid = servers.begin(sandbox_id, scratch / "saved")
            time.sleep(points.uniform(0, 0.4))
            servers.kill(pid)
            later = _as_a_new_server(driver.name, roots)
            if sandbox_id in asyncio.run(later.list()):
                asyncio.run(later.destroy(sandbox_id))
            later.close()
            _nothing_soon(sandbox_id, roots)
    finally:
        servers.close()
    assert sorted((file.name, file.stat().st_size) for file in (scratch / "saved").iterdir()) == before


def _nothing_soon(sandbox_id: str, roots: Path) -> None:
    deadline = time.monotonic() + 60
    while (found := traces(sandbox_id, roots)) != NOTHING and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found == NOTHING


@pytest.mark.parametrize("driver", ["runc"], indirect=True)
def test_kill_9_of_the_command_that_saves(
    driver: OciDriver, source: Sandbox, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gVisor saves itself. The first command that is killed would not end by itself; the others may be quicker than the kill:
    both outcomes are whole ones."""
    outcomes = []
    for turn in range(KILL_POINTS):
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "create_subprocess_exec", _spawning_and_killing(0.003 * turn))
            outcomes.append(asyncio.run(_save(driver, source.id, scratch / f"saved-{turn}")))
        assert asyncio.run(driver.inspect(source.id)).state is RunState.RUNNING
        assert listen_and_ask(source) == str(24 << 20)
    assert outcomes[0] == "killed"


async def _save(driver: OciDriver, sandbox_id: str, directory: Path) -> str:
    try:
        done = await driver.checkpoint(sandbox_id, directory, keep_running=True)
    except InternalError:
        assert not directory.exists()
        return "killed"
    assert {file.name for file in directory.iterdir()} == set(done.files)
    return "saved"


def _spawning_and_killing(delay_s: float) -> Callable[..., Awaitable[asyncio.subprocess.Process]]:
    spawn = asyncio.create_subprocess_exec

    async def spawn_and_kill(*words: str, **options: Any) -> asyncio.subprocess.Process:
        process = await spawn(*(words if delay_s else ("/bin/sleep", "1000")), **options)

        def kill() -> None:
            with suppress(ProcessLookupError):
                process.kill()

        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, kill)
        else:
            kill()
        return process

    return spawn_and_kill


def test_the_same_without_a_kill_saves(
    driver: OciDriver, roots: Path, rootfs: Path, source: Sandbox, scratch: Path
) -> None:
    servers = Servers("save", driver, roots, rootfs, scratch)
    pid = servers.begin(source.id, scratch / "saved")
    assert servers.read() == "done"
    servers.kill(pid)
    servers.close()
    assert (scratch / "saved" / "checkpoint.json").exists()
    assert listen_and_ask(source) == str(24 << 20)
