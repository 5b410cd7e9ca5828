"""Looking at sandboxes: whether one is there, alive or frozen, how it ended, and the end itself.

A watch is kept from the start of a sandbox on; of one that another server has started it begins at the first look, on
processes that are provably that sandbox's.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable, Set
from contextlib import suppress
from pathlib import Path
from typing import Final

from cloche.errors import SandboxNotRunning
from cloche_server.drivers._base import RunState, SandboxStatus, check_sandbox_id
from cloche_server.drivers._cgroup import Cgroup
from cloche_server.drivers._console import command_line, read_console, until_complete
from cloche_server.drivers._exit_record import explain, load_exit, save_exit, status_of
from cloche_server.drivers._exit_watch import ExitWatch
from cloche_server.drivers._layout import Layout
from cloche_server.drivers._runtimes import Runtime, saves_memory
from cloche_server.drivers._sandbox_watch import End, SandboxWatch, hold
from cloche_server.drivers._saving import thaw_if_abandoned
from cloche_server.drivers._under_way import UnderWay
from cloche_server.drivers._unsettled import settle

ENDING_BOUND_S: Final = 0.1
"""Measured: 5 ms between the last word of a killed runtime and its end."""

SETTLE_S: Final = 1.0
"""Between two looks at a sandbox whose save was abandoned. Measured: a save takes 0.1 to 0.3 s for 100 MB."""

SIGKILL_BIT: Final = 1 << (signal.SIGKILL - 1)
_PENDING: Final = re.compile(r"^(?:SigPnd|ShdPnd):\s*([0-9a-f]+)$", re.MULTILINE)

OUTPUT_TAIL_CHARS: Final = 4_000
"""Of the console, in errors and statuses: a traceback's end says what went wrong."""


class Watching:
    """Of the sandboxes of one driver. Close it."""

    def __init__(self, runtime: Runtime, layout: Layout, cgroup: Callable[[str], Cgroup], under_way: UnderWay) -> None:
        self._runtime = runtime
        self._layout = layout
        self._cgroup = cgroup
        self._under_way = under_way
        self._watches: dict[str, SandboxWatch] = {}
        self._settling: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        for task in self._settling:
            task.cancel()
        for sandbox_id in list(self._watches):
            self.forget(sandbox_id)

    def forget(self, sandbox_id: str) -> None:
        """Before it is removed."""
        if (watch := self._watches.pop(sandbox_id, None)) is not None:
            watch.close()

    def is_alive(self, sandbox_id: str) -> bool:
        watch = self._watch(sandbox_id)
        return watch is not None and not watch.has_ended()

    def pid(self, sandbox_id: str) -> int | None:
        """As the runtime noted it; None before it did."""
        try:
            return int(self._layout.of(sandbox_id).pid.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def is_dying(self, sandbox_id: str) -> bool:
        """SIGKILL waits for its first process, or for the process' main thread."""
        pid = self.pid(sandbox_id)
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False  # it has ended, or never began: that is not asked here
        return any(int(mask, 16) & SIGKILL_BIT for mask in _PENDING.findall(status))

    async def inspect(self, sandbox_id: str) -> SandboxStatus:
        check_sandbox_id(sandbox_id)
        paths = self._layout.of(sandbox_id)
        if (saved := load_exit(paths)) is not None:
            return saved
        if paths.removing.exists():  # by a server that died meanwhile: killed processes may be seen for a moment
            return SandboxStatus(RunState.UNKNOWN)
        if self.is_alive(sandbox_id):
            return SandboxStatus(await self._alive_state(sandbox_id))
        if sandbox_id in self._under_way.removals or self.pid(sandbox_id) is None:
            return SandboxStatus(RunState.UNKNOWN)
        return await self._record_exit(sandbox_id)

    async def _alive_state(self, sandbox_id: str) -> RunState:
        """A sandbox that stands still only while it is saved counts as running."""
        cgroup, paths = self._cgroup(sandbox_id), self._layout.of(sandbox_id)
        if paths.saving.exists() and not self._under_way.lock(sandbox_id).locked():
            await thaw_if_abandoned(paths, cgroup)
            return RunState.RUNNING
        return RunState.PAUSED if cgroup.is_frozen() and not paths.saving.exists() else RunState.RUNNING

    async def _record_exit(self, sandbox_id: str) -> SandboxStatus:
        """The runtime's helpers may outlive a killed sandbox and hold its uplinks open: they end here, too."""
        paths, cgroup, watch = self._layout.of(sandbox_id), self._cgroup(sandbox_id), self._watches.get(sandbox_id)
        end = await watch.end() if watch else End(None)
        helper = self._runtime.helper if end.of_helper else ""
        if not end.of_helper:
            await until_complete(cgroup)
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

    async def end_if_ending(self, sandbox_id: str) -> None:
        """A runtime that dies closes its connections first, and is seen to end a moment later."""
        if (watch := self._watches.get(sandbox_id)) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(ENDING_BOUND_S):
                    await watch.ended()

    async def alive(self, sandbox_id: str) -> SandboxStatus:
        """`SandboxNotRunning` when it has ended, or is being removed."""
        status = await self.inspect(sandbox_id)
        if not status.is_alive or sandbox_id in self._under_way.removals:
            raise SandboxNotRunning(
                f"sandbox {sandbox_id} does not run: {explain(status)}", details={"state": "stopped"}
            )
        return status

    def _watch(self, sandbox_id: str) -> SandboxWatch | None:
        """The watch kept since the start, or a new one on processes that are provably this sandbox's."""
        if (watch := self._watches.get(sandbox_id)) is not None:
            return watch
        if (pid := self.pid(sandbox_id)) is None:
            return None
        if (first := hold(pid)) is None:
            return None
        pids = self._cgroup(sandbox_id).pids()
        if pid not in pids:  # the number was given to another process
            first.close()
            return None
        helper = self._helper(sandbox_id, pids)
        watch = self._watches[sandbox_id] = SandboxWatch(first, helper, needs_helper=bool(self._runtime.helper))
        if sandbox_id not in self._under_way.starts and saves_memory(self._runtime):
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
            async with self._under_way.lock(sandbox_id):
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
