"""`OciDriver`: sandboxes from an OCI bundle and a runtime binary. Both `gvisor` and `runc` are this class.

A start is: home directory, cgroup, configuration, then one child process (`_launcher`) that joins the cgroup, makes the
disk and the mounts, and becomes the runtime. Everything is named after the sandbox's id, nothing is written down, and
all processes are in the cgroup; so `destroy` needs neither the runtime nor the server that began the start.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import shutil
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from cloche.errors import DriverUnavailable, SandboxNotRunning, SandboxStartFailed
from cloche_server.drivers import _idmap
from cloche_server.drivers._base import (
    ExitReason,
    Probe,
    RunState,
    SandboxSpec,
    SandboxStatus,
    SelfTest,
    Usage,
    check_sandbox_id,
)
from cloche_server.drivers._cgroup import Cgroup, detect_layout
from cloche_server.drivers._cgroup_files import MEBIBYTE, CgroupLayout
from cloche_server.drivers._exit_record import load_exit, save_exit, status_of
from cloche_server.drivers._exit_watch import ExitWatch
from cloche_server.drivers._launch_orders import LaunchOrders, Stage, launcher_environment, pick_stage
from cloche_server.drivers._layout import Layout, SandboxPaths
from cloche_server.drivers._oci_spec import OPEN_FILES, build_config
from cloche_server.drivers._runtimes import Runtime
from cloche_server.drivers._self_test import run_self_test

_log = logging.getLogger(__name__)

_LAUNCHER: Final = Path(__file__).with_name("_launcher.py")

RUNTIME_BOUND_S: Final = 20.0
"""For the runtime's command. Measured: 0.1 to 0.4 s; a machine that is busy with other starts needs seconds."""

PROBE_BOUND_S: Final = 30.0
"""For the guest's first word: it starts Python and dials."""

START_ATTEMPTS: Final = 2

REMOVE_BOUND_S: Final = 15.0

OUTPUT_TAIL_CHARS: Final = 4_000
"""Of the console, in errors and statuses: a traceback's end says what went wrong."""


class _AttemptFailed(Exception):
    """One attempt; the message is for people, ``output`` is the console."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


class OciDriver:
    """See `Driver` for the contract. ``close`` gives back the descriptors; sandboxes go on."""

    def __init__(self, runtime: Runtime, layout: Layout, cgroups: CgroupLayout | None = None) -> None:
        self._runtime = runtime
        self._layout = layout
        self._cgroups = cgroups
        self._watches: dict[str, ExitWatch] = {}
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._destroys: dict[str, asyncio.Task[None]] = {}

    @property
    def name(self) -> str:
        return self._runtime.name

    @property
    def isolation(self) -> str:
        return self._runtime.isolation

    @property
    def strength(self) -> int:
        return self._runtime.strength

    @property
    def capabilities(self) -> frozenset[str]:
        return self._runtime.capabilities

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    # -- starting

    async def self_test(self) -> SelfTest:
        return await run_self_test(self, self._runtime, self._layout.run_dir)

    async def start(self, spec: SandboxSpec, probe: Probe | None = None) -> None:
        if spec.sandbox_id in self._starts or await self._is_running(spec.sandbox_id):
            raise SandboxStartFailed(f"sandbox {spec.sandbox_id} is already there")
        task = asyncio.create_task(self._start_with_retry(spec, probe), name=f"start {spec.sandbox_id}")
        self._starts[spec.sandbox_id] = task
        try:
            await task
        except asyncio.CancelledError:
            if (current := asyncio.current_task()) and current.cancelling():
                task.cancel()
                await asyncio.wait([task])
                raise
            raise SandboxStartFailed(f"sandbox {spec.sandbox_id} was destroyed while it started") from None
        finally:
            del self._starts[spec.sandbox_id]

    async def _is_running(self, sandbox_id: str) -> bool:
        return (await self.inspect(sandbox_id)).state is RunState.RUNNING

    async def _start_with_retry(self, spec: SandboxSpec, probe: Probe | None) -> None:
        failures: list[_AttemptFailed] = []
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                await self._remove(spec.sandbox_id)
                await self._attempt(spec, probe)
            except _AttemptFailed as failure:
                failures.append(failure)
                _log.warning("start %d of sandbox %s failed: %s", attempt, spec.sandbox_id, failure)
            except BaseException:
                await asyncio.shield(self._remove(spec.sandbox_id))
                raise
            else:
                return
        await self._remove(spec.sandbox_id)
        raise self._start_failed(spec, failures)

    def _start_failed(self, spec: SandboxSpec, failures: list[_AttemptFailed]) -> SandboxStartFailed:
        last = failures[-1]
        said = f"; it said: {last.output.strip()[-500:]}" if last.output.strip() else ""
        return SandboxStartFailed(
            f"{self.name} could not start sandbox {spec.sandbox_id} in {len(failures)} attempts: {last}{said}",
            hint="`cloche doctor` tests this machine's drivers",
            details={"driver": self.name, "output": last.output, "attempts": [str(failure) for failure in failures]},
        )

    async def _attempt(self, spec: SandboxSpec, probe: Probe | None) -> None:
        paths, cgroup = self._layout.of(spec.sandbox_id), self._cgroup(spec.sandbox_id)
        try:
            self._make_home(paths)
            cgroup.create(self._runtime.host_limits(spec.resources))
            self._write_orders(spec, paths, cgroup)
            await self._launch(paths, cgroup)
            await self._watch_probe(spec.sandbox_id, probe)
        except (OSError, LookupError, ValueError) as error:
            raise _AttemptFailed(str(error), _console(paths)) from error

    def _make_home(self, paths: SandboxPaths) -> None:
        for directory in (self._layout.run_dir, self._layout.homes, paths.home):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._layout.disks.mkdir(parents=True, exist_ok=True, mode=0o700)
        paths.bundle.mkdir(exist_ok=True)
        paths.runtime.mkdir(exist_ok=True)

    def _write_orders(self, spec: SandboxSpec, paths: SandboxPaths, cgroup: Cgroup) -> None:
        binary = self._binary()
        rootfs, uplink = spec.rootfs.resolve(strict=True), spec.uplink_directory.resolve(strict=True)
        stage = pick_stage([paths.home, paths.disk, binary])
        first_id = self._first_id(spec.sandbox_id)
        isolation = replace(
            self._runtime.isolation_for(spec, stage, first_id, cgroup.oci_path),
            open_files=min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        )
        orders = LaunchOrders(
            join_files=[str(file) for file in cgroup.join_files],
            stage=stage.directory,
            disk=str(paths.disk),
            disk_bytes=spec.resources.disk_mb * MEBIBYTE,
            rootfs=str(rootfs),
            uplink=str(uplink),
            console=str(paths.console),
            first_id=first_id,
            argv=self._runtime.argv(binary, paths, stage, spec.sandbox_id),
        )
        _write_private(paths.bundle / "config.json", json.dumps(build_config(spec, stage, isolation)))
        _write_private(paths.orders, orders.to_json())

    def _binary(self) -> Path:
        binary = self._runtime.find()
        if binary is None:
            raise DriverUnavailable(f"{self.name}: no runtime binary", hint=self._runtime.how_to_get)
        return binary

    def _first_id(self, sandbox_id: str) -> int | None:
        if not self._runtime.needs_ids:
            return None
        return _idmap.first_id(_idmap.take_slot(self._layout.id_slots, sandbox_id))

    async def _launch(self, paths: SandboxPaths, cgroup: Cgroup) -> None:
        """Run the launcher, which becomes the runtime's command; that ends when the sandbox runs."""
        launcher = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_LAUNCHER), str(paths.orders)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            env=launcher_environment(),
        )
        try:
            async with asyncio.timeout(RUNTIME_BOUND_S):
                code = await launcher.wait()
        except TimeoutError:
            raise _AttemptFailed(f"no sandbox after {RUNTIME_BOUND_S:.0f} s", _console(paths)) from None
        finally:
            if launcher.returncode is None:
                launcher.kill()
                await launcher.wait()
        if code != 0:
            await _until_empty(cgroup)
            raise _AttemptFailed(f"the runtime ended with {code}", _console(paths))

    async def _watch_probe(self, sandbox_id: str, probe: Probe | None) -> None:
        """The guest must pass ``probe`` before it ends and in time."""
        watch = self._watch(sandbox_id)
        async with AsyncExitStack() as stack:
            tasks = [asyncio.create_task(watch.ended())] if watch else []
            stack.push_async_callback(_cancel_all, tasks)
            if watch is None or watch.has_ended():
                raise _AttemptFailed(await self._why_ended(sandbox_id), _console(self._layout.of(sandbox_id)))
            if probe is None:
                return
            probing = asyncio.ensure_future(probe())
            await asyncio.wait([*tasks, probing], timeout=PROBE_BOUND_S, return_when=asyncio.FIRST_COMPLETED)
            await self._judge_probe(sandbox_id, probing)

    async def _judge_probe(self, sandbox_id: str, probing: asyncio.Future[None]) -> None:
        output = _console(self._layout.of(sandbox_id))
        if probing.done():
            try:
                return probing.result()
            except Exception as error:
                raise _AttemptFailed(f"the guest failed its probe: {error}", output) from error
        probing.cancel()
        await asyncio.wait([probing])
        watch = self._watch(sandbox_id)
        if watch is None or watch.has_ended():
            raise _AttemptFailed(await self._why_ended(sandbox_id), output)
        raise _AttemptFailed(f"the guest said nothing in {PROBE_BOUND_S:.0f} s", output)

    async def _why_ended(self, sandbox_id: str) -> str:
        status = await self.inspect(sandbox_id)
        detail = {ExitReason.EXIT: f" {status.exit_code}", ExitReason.SIGNAL: f" {status.signal}"}
        return f"the sandbox ended at once: {status.reason or status.state}{detail.get(status.reason, '')}"

    # -- looking

    async def inspect(self, sandbox_id: str) -> SandboxStatus:
        check_sandbox_id(sandbox_id)
        paths = self._layout.of(sandbox_id)
        if (saved := load_exit(paths)) is not None:
            return saved
        watch = self._watch(sandbox_id)
        if watch is not None and not watch.has_ended():
            return SandboxStatus(RunState.RUNNING)
        if not paths.pid.exists():
            return SandboxStatus(RunState.UNKNOWN)
        return await self._record_exit(sandbox_id, watch)

    async def _record_exit(self, sandbox_id: str, watch: ExitWatch | None) -> SandboxStatus:
        paths = self._layout.of(sandbox_id)
        raw = await watch.wait_status() if watch else None
        status = status_of(raw, self._cgroup(sandbox_id).oom_kills(), _console(paths)[-OUTPUT_TAIL_CHARS:])
        save_exit(paths, status)
        return status

    async def wait_exit(self, sandbox_id: str) -> SandboxStatus:
        status = await self.inspect(sandbox_id)
        watch = self._watches.get(sandbox_id)
        if status.state is RunState.RUNNING and watch is not None:
            await watch.ended()
            return await self.inspect(sandbox_id)
        return status

    def _watch(self, sandbox_id: str) -> ExitWatch | None:
        """The watch kept since the start, or a new one on a process that is provably this sandbox's."""
        if (watch := self._watches.get(sandbox_id)) is not None:
            return watch
        with suppress(OSError, ValueError):
            pid = int(self._layout.of(sandbox_id).pid.read_text())
            watch = ExitWatch(pid)
            if pid in self._cgroup(sandbox_id).pids():  # the number may have been given to another process
                self._watches[sandbox_id] = watch
                return watch
            watch.close()
        return None

    async def list(self) -> list[str]:
        homes = self._layout.homes.iterdir() if self._layout.homes.exists() else ()
        disks = self._layout.disks.glob("*.img") if self._layout.disks.exists() else ()
        return sorted({home.name for home in homes} | {disk.stem for disk in disks})

    async def oom_kills(self, sandbox_id: str) -> int:
        return self._cgroup(sandbox_id).oom_kills()

    async def usage(self, sandbox_id: str) -> Usage:
        usage = self._cgroup(sandbox_id).usage()
        if usage is None:
            raise SandboxNotRunning(f"sandbox {sandbox_id} has no cgroup: nothing runs")
        return usage

    async def console(self, sandbox_id: str) -> str:
        """The first 64 KiB of what the runtime and PID 1 wrote; empty when there is none."""
        return _console(self._layout.of(sandbox_id))

    # -- removing

    async def destroy(self, sandbox_id: str) -> None:
        check_sandbox_id(sandbox_id)
        if (start := self._starts.get(sandbox_id)) is not None:
            start.cancel()
            await asyncio.wait([start])
        await self._remove(sandbox_id)

    async def _remove(self, sandbox_id: str) -> None:
        """Callers that come while it runs share it; a cancelled caller does not stop it half way."""
        task = self._destroys.get(sandbox_id)
        if task is None:
            task = asyncio.create_task(self._remove_all(sandbox_id), name=f"remove {sandbox_id}")
            self._destroys[sandbox_id] = task
            task.add_done_callback(lambda _: self._destroys.pop(sandbox_id, None))
        await asyncio.shield(task)

    async def _remove_all(self, sandbox_id: str) -> None:
        """Processes, then cgroup (a straggler cannot join any more), then ids and files, the home directory last."""
        if (watch := self._watches.pop(sandbox_id, None)) is not None:
            watch.close()
        paths = self._layout.of(sandbox_id)
        await self._remove_cgroup(self._cgroup(sandbox_id))
        _idmap.release_slots(self._layout.id_slots, sandbox_id)
        paths.disk.unlink(missing_ok=True)
        if paths.home.exists():
            await asyncio.to_thread(shutil.rmtree, paths.home)

    async def _remove_cgroup(self, cgroup: Cgroup) -> None:
        async with asyncio.timeout(REMOVE_BOUND_S):
            while cgroup.exists_anywhere():
                await cgroup.kill_all()
                try:
                    cgroup.remove()
                except OSError:  # EBUSY: somebody joined in between, or is not reaped yet
                    await asyncio.sleep(0.005)

    def _cgroup(self, sandbox_id: str) -> Cgroup:
        if self._cgroups is None:
            self._cgroups = detect_layout()
        return Cgroup(self._cgroups, sandbox_id)


async def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def _until_empty(cgroup: Cgroup) -> None:
    """The console's reader ends when its last writer does; then the console is complete."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            while cgroup.pids():
                await asyncio.sleep(0.01)


def _console(paths: SandboxPaths) -> str:
    try:
        return paths.console.read_text(errors="replace")
    except OSError:
        return ""


def _write_private(path: Path, text: str) -> None:
    """0600 from the first moment: the environment in it may hold secrets."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
