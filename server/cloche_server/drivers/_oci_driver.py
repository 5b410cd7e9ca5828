"""`OciDriver`: sandboxes from an OCI bundle and a runtime binary. Both `gvisor` and `runc` are this class.

A start is: home directory, cgroup, configuration, then one child process (`_launcher`) that joins the cgroup, makes the
disk and the mounts, and becomes the runtime. Everything is named after the sandbox's id, nothing is written down, and
all processes are in the cgroup; so `destroy` needs neither the runtime nor the server that began the start.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import shutil
from asyncio import FIRST_COMPLETED
from collections.abc import Sequence, Set
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

from cloche.errors import ClocheError, InternalError, SandboxNotRunning, SandboxStartFailed
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
from cloche_server.drivers._cgroup_files import MEBIBYTE, CgroupLayout
from cloche_server.drivers._checkpoint import (
    UNFINISHED,
    Record,
    allocated_bytes,
    check_absent,
    make_durable,
    names_and_size,
    new_directory,
    read_record,
    sizes_in,
    write_record,
)
from cloche_server.drivers._console import read_console
from cloche_server.drivers._exit_record import explain, load_exit, save_exit, status_of
from cloche_server.drivers._exit_watch import ExitWatch
from cloche_server.drivers._layout import Layout
from cloche_server.drivers._made_by import OTHER_PROCESSOR, check_processor, check_runtime
from cloche_server.drivers._runtimes import Runtime
from cloche_server.drivers._sandbox_watch import End, SandboxWatch, hold
from cloche_server.drivers._saving import freeze, save_disk, save_memory, standing_still, thaw_if_abandoned
from cloche_server.drivers._self_test import run_self_test, version_of
from cloche_server.drivers._start import AttemptFailed, check_checkpoint, command_line, find_binary, start_once
from cloche_server.drivers._unsettled import settle

_log = logging.getLogger(__name__)

PROBE_BOUND_S: Final = 30.0
"""For the guest's first word: it starts Python and dials."""

START_ATTEMPTS: Final = 2

ENDING_BOUND_S: Final = 0.1
"""Measured: 5 ms between the last word of a killed runtime and its end."""

REMOVE_BOUND_S: Final = 15.0

SETTLE_S: Final = 1.0
"""Between two looks at a sandbox whose save was abandoned. Measured: a save takes 0.1 to 0.3 s for 100 MB."""

OUTPUT_TAIL_CHARS: Final = 4_000
"""Of the console, in errors and statuses: a traceback's end says what went wrong."""


class OciDriver:
    """See `Driver` for the contract. ``close`` gives back the descriptors; sandboxes go on."""

    def __init__(self, runtime: Runtime, layout: Layout, cgroups: CgroupLayout | None = None) -> None:
        self._runtime = runtime
        self._layout = layout
        self._cgroups = cgroups
        self._watches: dict[str, SandboxWatch] = {}
        self._settling: set[asyncio.Task[None]] = set()
        self._known_version: tuple[tuple[int, int, int], str] = ((0, 0, 0), "")
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._removals: dict[str, asyncio.Task[None]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

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
        for task in self._settling:
            task.cancel()
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    # -- starting

    async def self_test(self) -> SelfTest:
        return await run_self_test(self, self._runtime, self._layout.run_dir)

    async def start(self, spec: SandboxSpec, probe: Probe | None = None, saved: WhenSaved | None = None) -> None:
        if spec.checkpoint is not None and saved is None:
            check_checkpoint(spec, self._runtime)
            check_runtime(read_record(spec.checkpoint), await self._version())
        if await self._is_running(spec.sandbox_id) or spec.sandbox_id in self._starts:
            raise SandboxStartFailed(f"sandbox {spec.sandbox_id} is already there")
        task = asyncio.create_task(self._start_with_retry(spec, probe, saved), name=f"start {spec.sandbox_id}")
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
        return (await self.inspect(sandbox_id)).is_alive

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
            await start_once(spec, self._runtime, self._layout, cgroup, saved)
            await self._hear_from(spec.sandbox_id, probe)
        except (OSError, LookupError, ValueError) as error:
            raise AttemptFailed(str(error), read_console(paths)) from error

    async def _hear_from(self, sandbox_id: str, probe: Probe | None) -> None:
        """The sandbox must be alive, and its guest pass ``probe`` before it ends and in time."""
        if probe is not None and self._is_alive(sandbox_id):
            await self._pass_probe(sandbox_id, probe)
        if not self._is_alive(sandbox_id):
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

    def _is_alive(self, sandbox_id: str) -> bool:
        watch = self._watch(sandbox_id)
        return watch is not None and not watch.has_ended()

    # -- looking

    async def inspect(self, sandbox_id: str) -> SandboxStatus:
        check_sandbox_id(sandbox_id)
        paths = self._layout.of(sandbox_id)
        if (saved := load_exit(paths)) is not None:
            return saved
        if paths.removing.exists():  # by a server that died meanwhile: killed processes may be seen for a moment
            return SandboxStatus(RunState.UNKNOWN)
        if self._is_alive(sandbox_id):
            return SandboxStatus(await self._alive_state(sandbox_id))
        if sandbox_id in self._removals or self._pid(sandbox_id) is None:
            return SandboxStatus(RunState.UNKNOWN)
        return await self._record_exit(sandbox_id)

    async def _alive_state(self, sandbox_id: str) -> RunState:
        """A sandbox that stands still only while it is saved counts as running."""
        cgroup, paths = self._cgroup(sandbox_id), self._layout.of(sandbox_id)
        if paths.saving.exists() and not self._lock(sandbox_id).locked():
            await thaw_if_abandoned(paths, cgroup)
            return RunState.RUNNING
        return RunState.PAUSED if cgroup.is_frozen() and not paths.saving.exists() else RunState.RUNNING

    async def _record_exit(self, sandbox_id: str) -> SandboxStatus:
        """The runtime's helpers may outlive a killed sandbox and hold its uplinks open: they end here, too."""
        paths, cgroup, watch = self._layout.of(sandbox_id), self._cgroup(sandbox_id), self._watches.get(sandbox_id)
        end = await watch.end() if watch else End(None)
        helper = self._runtime.helper if end.of_helper else ""
        status = status_of(end.wait_status, cgroup.oom_kills(), read_console(paths)[-OUTPUT_TAIL_CHARS:], helper)
        save_exit(paths, status)
        await cgroup.kill_all()
        return status

    async def wait_exit(self, sandbox_id: str) -> SandboxStatus:
        status = await self.inspect(sandbox_id)
        watch = self._watches.get(sandbox_id)
        if status.is_alive and watch is not None:
            await watch.ended()
            return await self.inspect(sandbox_id)
        return status

    def _watch(self, sandbox_id: str) -> SandboxWatch | None:
        """The watch kept since the start, or a new one on processes that are provably this sandbox's."""
        if (watch := self._watches.get(sandbox_id)) is not None:
            return watch
        if (pid := self._pid(sandbox_id)) is None:
            return None
        if (first := hold(pid)) is None:
            return None
        pids = self._cgroup(sandbox_id).pids()
        if pid not in pids:  # the number was given to another process
            first.close()
            return None
        helper = self._helper(sandbox_id, pids)
        watch = self._watches[sandbox_id] = SandboxWatch(first, helper, needs_helper=bool(self._runtime.helper))
        if sandbox_id not in self._starts and self._saves_memory:
            task = asyncio.create_task(self._settle(sandbox_id, pid), name=f"settle {sandbox_id}")
            self._settling.add(task)
            task.add_done_callback(self._settling.discard)
        return watch

    async def _settle(self, sandbox_id: str, pid: int) -> None:
        """The memory limit of a sandbox that a server before this one left. Not at once: a request to save it may just be
        on its way to the runtime."""
        done = False
        while not done:
            await asyncio.sleep(SETTLE_S)
            async with self._lock(sandbox_id):
                done = settle(self._layout.of(sandbox_id), self._cgroup(sandbox_id), pid)

    def _helper(self, sandbox_id: str, pids: Set[int]) -> ExitWatch | None:
        """One of these processes. Its command line names the directory of its runtime, which no other has."""
        paths = self._layout.of(sandbox_id)
        for pid in sorted(pids) if self._runtime.helper else ():
            if self._runtime.is_helper(command_line(pid), paths) and (watch := hold(pid)) is not None:
                if self._runtime.is_helper(command_line(pid), paths):
                    return watch
                watch.close()
        return None

    def _pid(self, sandbox_id: str) -> int | None:
        """As the runtime noted it; None before it did."""
        try:
            return int(self._layout.of(sandbox_id).pid.read_text())
        except (FileNotFoundError, ValueError):
            return None

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
        async with self._lock(sandbox_id):
            if (await self._alive(sandbox_id)).state is RunState.RUNNING:
                await freeze(self._cgroup(sandbox_id))

    async def resume(self, sandbox_id: str) -> None:
        async with self._lock(sandbox_id):
            await self._alive(sandbox_id)
            self._cgroup(sandbox_id).thaw()

    async def checkpoint(self, sandbox_id: str, directory: Path, *, keep_running: bool) -> Checkpoint:
        async with self._lock(sandbox_id):
            await self._alive(sandbox_id)
            if keep_running:
                with new_directory(directory):
                    pause_s = await self._save(sandbox_id, directory, keep_running=True)
            else:
                pause_s = await self._save_for_good(sandbox_id, directory)
                await self._remove_saved(sandbox_id)
        return Checkpoint(self._saves_memory, pause_s, *names_and_size(directory))

    async def _save_for_good(self, sandbox_id: str, directory: Path) -> float:
        """Afterwards it stands still. The directory gets its name when all of it is on the host's disk: whatever ends the
        server, or the machine, what has the name is whole."""
        check_absent(directory)
        paths, cgroup = self._layout.of(sandbox_id), self._cgroup(sandbox_id)
        unfinished = directory.with_name(directory.name + UNFINISHED)
        shutil.rmtree(unfinished, ignore_errors=True)
        with new_directory(unfinished):
            async with AsyncExitStack() as stack:
                if not self._saves_memory:  # what saves its own memory cannot stand still meanwhile
                    await stack.enter_async_context(standing_still(paths, cgroup, go_on=False))
                pause_s = await self._save(sandbox_id, unfinished, keep_running=False)
                if self._saves_memory:
                    await stack.enter_async_context(standing_still(paths, cgroup, go_on=False))
                await asyncio.to_thread(make_durable, unfinished)
                unfinished.rename(directory)
        return pause_s

    @property
    def _saves_memory(self) -> bool:
        return "memory_snapshot" in self.capabilities

    async def _save(self, sandbox_id: str, directory: Path, *, keep_running: bool) -> float:
        try:
            pause_s = await self._save_by_kind(sandbox_id, directory, keep_running=keep_running)
            await self._record(sandbox_id, directory)
        except (ClocheError, OSError):
            await self._end_if_ending(sandbox_id)
            await self._alive(sandbox_id)  # a sandbox that ended meanwhile is the better reason
            raise
        await self._alive(sandbox_id)
        return pause_s

    async def _record(self, sandbox_id: str, directory: Path) -> None:
        paths = self._layout.of(sandbox_id)
        orders = json.loads(paths.orders.read_text())
        record = Record(
            driver=self.name,
            memory=self._saves_memory,
            disk_mb=orders["disk_bytes"] // MEBIBYTE,
            volumes=orders["volume_targets"],
            sizes=sizes_in(directory),
            runtime=await self._version(),
        )
        write_record(directory, record)

    async def _version(self) -> str:
        """Of the runtime; empty when it does not tell. The binary may be replaced while the server runs."""
        stat = find_binary(self._runtime).stat()
        key = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if self._known_version[0] != key:
            self._known_version = (key, await version_of(self._runtime) or "")
        return self._known_version[1]

    async def _save_by_kind(self, sandbox_id: str, directory: Path, *, keep_running: bool) -> float:
        paths, cgroup = self._layout.of(sandbox_id), self._cgroup(sandbox_id)
        if self._saves_memory:
            return await save_memory(self._runtime, find_binary(self._runtime), paths, cgroup, directory)
        return await save_disk(paths, cgroup, self._pid(sandbox_id) or 0, directory, go_on=keep_running)

    async def _remove_saved(self, sandbox_id: str) -> None:
        """What cannot be removed now is removed by a later `destroy`; what was saved must not be lost for that."""
        try:
            await self._remove(sandbox_id)
        except InternalError:
            _log.exception("sandbox %s was saved, but something of it is left", sandbox_id)

    async def _end_if_ending(self, sandbox_id: str) -> None:
        """A runtime that dies closes its connections first, and is seen to end a moment later."""
        if (watch := self._watches.get(sandbox_id)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDING_BOUND_S):
                    await watch.ended()

    async def _alive(self, sandbox_id: str) -> SandboxStatus:
        status = await self.inspect(sandbox_id)
        if not status.is_alive or sandbox_id in self._removals:
            raise SandboxNotRunning(
                f"sandbox {sandbox_id} does not run: {explain(status)}", details={"state": "stopped"}
            )
        return status

    def _lock(self, sandbox_id: str) -> asyncio.Lock:
        """One of `pause`, `resume` and `checkpoint` at a time. `destroy` waits for none of them: they fail then."""
        lock = self._locks.get(sandbox_id)
        if lock is None:
            lock = self._locks[sandbox_id] = asyncio.Lock()
        return lock

    # -- removing

    async def destroy(self, sandbox_id: str) -> None:
        check_sandbox_id(sandbox_id)
        if (start := self._starts.get(sandbox_id)) is not None:
            start.cancel()
            await asyncio.wait([start])
        await self._remove(sandbox_id)

    async def _remove(self, sandbox_id: str) -> None:
        """Callers that come while it runs share it; a cancelled caller does not stop it half way."""
        task = self._removals.get(sandbox_id)
        if task is None:
            task = asyncio.create_task(self._remove_all(sandbox_id), name=f"remove {sandbox_id}")
            self._removals[sandbox_id] = task
            task.add_done_callback(lambda _: self._removals.pop(sandbox_id, None))
        await asyncio.shield(task)

    async def _remove_all(self, sandbox_id: str) -> None:
        """Processes, then cgroup (a straggler cannot join any more), then ids and files, the home directory last."""
        if (watch := self._watches.pop(sandbox_id, None)) is not None:
            watch.close()
        paths = self._layout.of(sandbox_id)
        with suppress(OSError):  # nothing is there, or the disk is full, and a removal is what helps
            paths.removing.touch()
        await self._remove_cgroup(self._cgroup(sandbox_id))
        _idmap.release_slots(self._layout.id_slots, sandbox_id)
        paths.disk.unlink(missing_ok=True)
        await asyncio.to_thread(_delete_tree, paths.home)

    async def _remove_cgroup(self, cgroup: Cgroup) -> None:
        try:
            async with asyncio.timeout(REMOVE_BOUND_S):
                while cgroup.exists_anywhere():
                    await cgroup.kill_all()
                    if not cgroup.remove():
                        await asyncio.sleep(0.005)
        except TimeoutError:
            stuck = sorted(cgroup.pids())
            message = f"{cgroup.oci_path} could not be emptied in {REMOVE_BOUND_S:.0f} s; processes left: {stuck}"
            raise InternalError(message, hint="a process stuck in the kernel; destroy again later") from None

    def _cgroup(self, sandbox_id: str) -> Cgroup:
        if self._cgroups is None:
            self._cgroups = detect_layout()
        return Cgroup(self._cgroups, sandbox_id)


def _delete_tree(directory: Path) -> None:
    """Again while something is written into it: a waiter may be recording the exit."""
    while directory.exists():
        try:
            shutil.rmtree(directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise


async def _cancel(futures: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel what still runs and wait until it is over, its outcome read."""
    for future in futures:
        future.cancel()
    await asyncio.gather(*futures, return_exceptions=True)
