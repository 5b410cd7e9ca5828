"""`OciDriver`: sandboxes from an OCI bundle and a runtime binary. Both `gvisor` and `runc` are this class.

A start is: home directory, cgroup, configuration, then one child process (`_launcher`) that joins the cgroup, makes the
disk and the mounts, and becomes the runtime. Everything is named after the sandbox's id, nothing is written down, and
all processes are in the cgroup; so `destroy` needs neither the runtime nor the server that began the start.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from cloche.errors import InternalError, SandboxNotRunning, SandboxStartFailed
from cloche_server.drivers import _idmap
from cloche_server.drivers._base import (
    Checkpoint,
    Probe,
    RunState,
    SandboxSpec,
    SandboxStatus,
    SelfTest,
    Usage,
    WhenSaved,
    check_sandbox_id,
    is_sandbox_id,
)
from cloche_server.drivers._cgroup import Cgroup, detect_layout
from cloche_server.drivers._cgroup_files import CgroupLayout
from cloche_server.drivers._checkpoint import allocated_bytes, names_and_size
from cloche_server.drivers._checkpoint_maker import CheckpointMaker
from cloche_server.drivers._console import read_console
from cloche_server.drivers._exit_record import explain
from cloche_server.drivers._launching import LauncherAhead
from cloche_server.drivers._layout import Layout
from cloche_server.drivers._made_by import OTHER_PROCESSOR, check_processor
from cloche_server.drivers._removal import delete_tree, remove_cgroup
from cloche_server.drivers._runtimes import Runtime, saves_memory
from cloche_server.drivers._saving import freeze
from cloche_server.drivers._self_test import run_self_test
from cloche_server.drivers._start import AttemptFailed, check_checkpoint, start_once
from cloche_server.drivers._under_way import UnderWay
from cloche_server.drivers._watching import Watching

_log = logging.getLogger(__name__)

PROBE_BOUND_S: Final = 30.0
"""For the guest's first word: it starts Python and dials."""

START_ATTEMPTS: Final = 2


class OciDriver:
    """See `Driver` for the contract. ``close`` gives back the descriptors; sandboxes go on."""

    def __init__(self, runtime: Runtime, layout: Layout, cgroups: CgroupLayout | None = None) -> None:
        self._runtime = runtime
        self._layout = layout
        self._cgroups = cgroups
        self._under_way = UnderWay()
        self._launcher = LauncherAhead()
        self._watching = Watching(runtime, layout, self._cgroup, self._under_way)
        self._checkpoints = CheckpointMaker(runtime, layout, self._cgroup, self._watching)

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
        self._watching.close()
        self._launcher.close()

    # -- starting

    async def self_test(self) -> SelfTest:
        return await run_self_test(self, self._runtime, self._layout.run_dir)

    async def start(self, spec: SandboxSpec, probe: Probe | None = None, saved: WhenSaved | None = None) -> None:
        if spec.checkpoint is not None and saved is None:
            check_checkpoint(spec, self._runtime, await self._checkpoints.version())
        is_alive = (await self.inspect(spec.sandbox_id)).is_alive
        if is_alive or spec.sandbox_id in self._under_way.starts:
            raise SandboxStartFailed(f"sandbox {spec.sandbox_id} is already there")
        task = asyncio.create_task(self._start_with_retry(spec, probe, saved), name=f"start {spec.sandbox_id}")
        self._under_way.starts[spec.sandbox_id] = task
        try:
            await task
        except asyncio.CancelledError:
            if (current := asyncio.current_task()) and current.cancelling():
                task.cancel()
                await asyncio.wait([task])
                raise
            raise SandboxStartFailed(f"sandbox {spec.sandbox_id} was destroyed while it started") from None
        finally:
            del self._under_way.starts[spec.sandbox_id]

    async def _start_with_retry(self, spec: SandboxSpec, probe: Probe | None, saved: WhenSaved | None) -> None:
        failures: list[AttemptFailed] = []
        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                await self._remove(spec.sandbox_id)
                await self._attempt(spec, probe, saved)
            except AttemptFailed as failure:
                failures.append(failure)
                _log.warning("start %d of sandbox %s failed: %s", attempt, spec.sandbox_id, failure)
                if spec.checkpoint is not None and OTHER_PROCESSOR in failure.output:
                    break
            except BaseException:
                await asyncio.shield(self._remove(spec.sandbox_id))
                raise
            else:
                return
        await self._remove(spec.sandbox_id)
        raise self._start_failed(spec, failures)

    def _start_failed(self, spec: SandboxSpec, failures: list[AttemptFailed]) -> SandboxStartFailed:
        last = failures[-1]
        if spec.checkpoint is not None:
            check_processor(self.name, last.output)
        said = f"; it said: {last.output.strip()[-500:]}" if last.output.strip() else ""
        return SandboxStartFailed(
            f"{self.name} could not start sandbox {spec.sandbox_id} in {len(failures)} attempts: {last}{said}",
            hint="`cloche doctor` tests this machine's drivers",
            details={"driver": self.name, "output": last.output, "attempts": [str(failure) for failure in failures]},
        )

    async def _attempt(self, spec: SandboxSpec, probe: Probe | None, saved: WhenSaved | None) -> None:
        paths, cgroup = self._layout.of(spec.sandbox_id), self._cgroup(spec.sandbox_id)
        try:
            version = await self._checkpoints.version()
            await start_once(spec, self._runtime, version, self._layout, cgroup, self._launcher, saved)
            await self._hear_from(spec.sandbox_id, probe)
        except (OSError, LookupError, ValueError) as error:
            raise AttemptFailed(str(error), read_console(paths)) from error

    async def _hear_from(self, sandbox_id: str, probe: Probe | None) -> None:
        """The sandbox must be alive, and its guest pass ``probe`` before it ends and in time."""
        if probe is not None and self._watching.is_alive(sandbox_id):
            await self._pass_probe(sandbox_id, probe)
        if not self._watching.is_alive(sandbox_id):
            status = await self.inspect(sandbox_id)
            raise AttemptFailed(f"the sandbox ended at once: {explain(status)}", status.output)

    async def _pass_probe(self, sandbox_id: str, probe: Probe) -> None:
        probing, ended = asyncio.ensure_future(probe()), asyncio.ensure_future(self.wait_exit(sandbox_id))
        try:
            done, _ = await asyncio.wait([probing, ended], timeout=PROBE_BOUND_S, return_when=FIRST_COMPLETED)
            if probing in done and (error := probing.exception()) is not None:
                if isinstance(error, SandboxStartFailed):  # a verdict: the next attempt would end in the same way
                    raise error
                raise AttemptFailed(f"the guest failed its probe: {error}", await self.console(sandbox_id)) from error
            if not done:
                silence = f"the guest said nothing in {PROBE_BOUND_S:.0f} s"
                raise AttemptFailed(silence, await self.console(sandbox_id))
        finally:
            await _cancel([probing, ended])

    # -- looking

    async def inspect(self, sandbox_id: str) -> SandboxStatus:
        return await self._watching.inspect(sandbox_id)

    def is_dying(self, sandbox_id: str) -> bool:
        return self._watching.is_dying(sandbox_id)

    async def wait_exit(self, sandbox_id: str) -> SandboxStatus:
        return await self._watching.wait_exit(sandbox_id)

    async def list(self) -> list[str]:
        homes = self._layout.homes.iterdir() if self._layout.homes.exists() else ()
        disks = self._layout.disks.glob("*.img") if self._layout.disks.exists() else ()
        names = {home.name for home in homes} | {disk.stem for disk in disks}
        return sorted(name for name in names if is_sandbox_id(name))

    async def oom_kills(self, sandbox_id: str) -> int:
        return self._cgroup(sandbox_id).oom_kills()

    async def usage(self, sandbox_id: str) -> Usage:
        usage = self._cgroup(sandbox_id).usage()
        if usage is None:
            raise SandboxNotRunning(f"sandbox {sandbox_id} has no cgroup: nothing runs")
        return replace(usage, disk_bytes=allocated_bytes(self._layout.of(sandbox_id).disk))

    async def console(self, sandbox_id: str) -> str:
        """The first 64 KiB of what the runtime and PID 1 wrote; empty when there is none."""
        return read_console(self._layout.of(sandbox_id))

    # -- saving

    async def pause(self, sandbox_id: str) -> None:
        async with self._under_way.lock(sandbox_id):
            if (await self._watching.alive(sandbox_id)).state is RunState.RUNNING:
                await freeze(self._cgroup(sandbox_id))

    async def resume(self, sandbox_id: str) -> None:
        async with self._under_way.lock(sandbox_id):
            await self._watching.alive(sandbox_id)
            self._cgroup(sandbox_id).thaw()

    async def checkpoint(self, sandbox_id: str, directory: Path, *, keep_running: bool) -> Checkpoint:
        async with self._under_way.lock(sandbox_id):
            await self._watching.alive(sandbox_id)
            if keep_running:
                pause_s = await self._checkpoints.save(sandbox_id, directory)
            else:
                pause_s = await self._checkpoints.save_for_good(sandbox_id, directory)
                await self._remove_saved(sandbox_id)
        return Checkpoint(saves_memory(self._runtime), pause_s, *names_and_size(directory))

    async def _remove_saved(self, sandbox_id: str) -> None:
        """What cannot be removed now is removed by a later `destroy`; what was saved must not be lost for that."""
        try:
            await self._remove(sandbox_id)
        except InternalError:
            _log.exception("sandbox %s was saved, but something of it is left", sandbox_id)

    # -- removing

    async def destroy(self, sandbox_id: str) -> None:
        check_sandbox_id(sandbox_id)
        if (start := self._under_way.starts.get(sandbox_id)) is not None:
            start.cancel()
            await asyncio.wait([start])
        await self._remove(sandbox_id)

    async def _remove(self, sandbox_id: str) -> None:
        """Callers that come while it runs share it; a cancelled caller does not stop it half way."""
        task = self._under_way.removals.get(sandbox_id)
        if task is None:
            task = asyncio.create_task(self._remove_all(sandbox_id), name=f"remove {sandbox_id}")
            self._under_way.removals[sandbox_id] = task
            task.add_done_callback(lambda _: self._under_way.removals.pop(sandbox_id, None))
        await asyncio.shield(task)

    async def _remove_all(self, sandbox_id: str) -> None:
        """Processes, then cgroup (a straggler cannot join any more), then ids and files, the home directory last."""
        self._watching.forget(sandbox_id)
        paths = self._layout.of(sandbox_id)
        with suppress(OSError):  # nothing is there, or the disk is full, and a removal is what helps
            paths.removing.touch()
        await remove_cgroup(self._cgroup(sandbox_id))
        _idmap.release_slots(self._layout.id_slots, sandbox_id)
        paths.disk.unlink(missing_ok=True)
        await asyncio.to_thread(delete_tree, paths.home)

    def _cgroup(self, sandbox_id: str) -> Cgroup:
        if self._cgroups is None:
            self._cgroups = detect_layout()
        return Cgroup(self._cgroups, sandbox_id)


async def _cancel(futures: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what still runs and wait until it is over, its outcome read."""
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)
