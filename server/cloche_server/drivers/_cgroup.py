"""One sandbox's cgroup: made, limited, read, emptied by force, removed. Names and values come from `_cgroup_files`.

Nothing is kept in memory: the cgroup is ``cloche/<id>`` in every hierarchy, so a new process continues where a killed
one stopped. A process only ever *joins* a cgroup that exists (`_launcher`); once `remove` has taken the directories
away, a straggler fails to join and ends, so nothing can start after a removal.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final

from cloche_server.drivers._base import Usage
from cloche_server.drivers._cgroup_files import (
    CPU_FILE,
    MEMORY_FILE,
    MEMORY_LIMIT_FILE,
    MEMORY_PEAK_FILE,
    OOM_FILE,
    CgroupLayout,
    Controller,
    Limits,
    Write,
    counted_in,
    cpu_seconds,
    find_layout,
    limit_writes,
    lower_memory_writes,
    raise_memory_writes,
    unreclaimable_bytes,
    weight_writes,
)

PARENT: Final = "cloche"
"""Our directory in the root of each hierarchy, outside of the server's own: a stopped service leaves it alone."""

KILL_BOUND_S: Final = 10.0
"""SIGKILL cannot be refused; more than this means a process stuck in the kernel (measured: 5-60 ms)."""

KILLED_AT_ONCE: Final = 128
"""Each takes a descriptor meanwhile, of which a server may have 1,024."""

WORK_BYTES: Final = 1 << 30
"""For a runtime that saves or restores. Measured: 250 MB for 50,000 files that its kernel knows, and gone afterwards."""

SETTLE_ROOM_BYTES: Final = 16 << 20

FREEZE_BOUND_S: Final = 5.0
"""A process in an uninterruptible wait is frozen when that ends; measured: 1-20 ms."""


def detect_layout() -> CgroupLayout:
    """The hierarchies of this machine; `LookupError` when a controller is nowhere."""
    mountinfo = Path("/proc/self/mountinfo").read_text()
    candidates = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")]
    controllers = next((_read(c / "cgroup.controllers") for c in candidates if (c / "cgroup.controllers").exists()), "")
    return find_layout(mountinfo, controllers)


class Cgroup:
    """The cgroup of one sandbox. Cheap to make; making the object touches nothing."""

    def __init__(self, layout: CgroupLayout, sandbox_id: str) -> None:
        self._layout = layout
        self._name = f"{PARENT}/{sandbox_id}"

    @property
    def oci_path(self) -> str:
        """For ``linux.cgroupsPath``."""
        return f"/{self._name}"

    @property
    def join_files(self) -> list[Path]:
        """Write a pid into each to move the process in."""
        return [directory / "cgroup.procs" for directory in self._layout.directories(self._name)]

    @property
    def memory_events(self) -> Path:
        """The file that counts out-of-memory kills."""
        return self._directory_of_memory() / OOM_FILE[self._layout.version]

    def create(self, limits: Limits) -> None:
        """Make the directories and set the limits. `OSError` when the kernel refuses one."""
        if self._layout.version == 2:
            self._delegate()
        for directory in self._layout.directories(self._name):
            directory.mkdir(parents=True, exist_ok=True)
        for controller, writes in limit_writes(self._layout.version, limits).items():
            self._write(controller, writes)

    def weigh(self, weight: int) -> None:
        """Its share of the processors, see `weight_writes`."""
        self._write(Controller.CPU, weight_writes(self._layout.version, weight))

    def raise_memory(self, memory_bytes: int) -> None:
        """Afterwards: a runtime tells its guest the limit it finds when it starts."""
        self._write(Controller.MEMORY, raise_memory_writes(self._layout.version, memory_bytes))

    @contextmanager
    def extra_memory(self, normal_bytes: int) -> Iterator[None]:
        """`WORK_BYTES` more than the normal limit while the body runs."""
        self.raise_memory(normal_bytes + WORK_BYTES)
        try:
            yield
        finally:
            self.settle_memory(normal_bytes)

    def has_extra_memory(self, normal_bytes: int) -> bool:
        """True while `extra_memory` is in effect, or for ever, when its server died."""
        limit = self._value(Controller.MEMORY, MEMORY_LIMIT_FILE).strip()
        return limit.isdigit() and int(limit) == normal_bytes + WORK_BYTES

    def settle_memory(self, normal_bytes: int) -> None:
        """Down to the normal limit, or as far as nobody is killed for it: a runtime gives memory back in minutes."""
        used, stat = self._value(Controller.MEMORY, MEMORY_FILE), self._directory_of_memory() / "memory.stat"
        needed = unreclaimable_bytes(int(used or 0), _read(stat)) + SETTLE_ROOM_BYTES
        with suppress(OSError):  # it cannot be lowered (EBUSY), or is gone
            self._write(Controller.MEMORY, lower_memory_writes(self._layout.version, max(normal_bytes, needed)))

    def _directory_of_memory(self) -> Path:
        return self._layout.directory(Controller.MEMORY, self._name)

    def _write(self, controller: Controller, writes: Sequence[Write]) -> None:
        directory = self._layout.directory(controller, self._name)
        for write in writes:
            if not write.optional or (directory / write.file).exists():
                (directory / write.file).write_text(write.value)

    def _delegate(self) -> None:
        """Version 2 gives a child only the controllers its parents pass on."""
        root = self._layout.mounts[Controller.MEMORY]
        (root / PARENT).mkdir(exist_ok=True)
        for directory in (root, root / PARENT):
            (directory / "cgroup.subtree_control").write_text("+memory +pids +cpu")

    @property
    def _freezer(self) -> Path:
        return self._layout.freezer.mount / self._name

    def is_frozen(self) -> bool:
        """Frozen or about to be; False when there is no cgroup."""
        return self._layout.freezer.is_wanted(_read(self._freezer / self._layout.freezer.file))

    async def freeze(self) -> None:
        """Returns when every process stands still. `TimeoutError` when one does not: all go on then. `FileNotFoundError`
        when there is nothing to freeze, also any more: who removes a sandbox thaws it, and then takes the cgroup away."""
        freezer = self._layout.freezer
        try:
            async with asyncio.timeout(FREEZE_BOUND_S):
                (self._freezer / freezer.file).write_text(freezer.word(frozen=True))
                while not freezer.is_done(_read(self._freezer / freezer.done_file)):
                    if not self.is_frozen():
                        raise FileNotFoundError(errno.ENOENT, "removed while it was frozen", str(self._freezer))
                    await asyncio.sleep(0.001)
        except BaseException:
            self.thaw()
            raise

    def thaw(self) -> None:
        """Every process goes on; nothing when the cgroup is gone."""
        freezer = self._layout.freezer
        with suppress(OSError):
            (self._freezer / freezer.file).write_text(freezer.word(frozen=False))

    def exists_anywhere(self) -> bool:
        return any(directory.exists() for directory in self._layout.all_directories(self._name))

    def pids(self) -> set[int]:
        """Of every process in any of the hierarchies; empty when there is no cgroup."""
        found: set[int] = set()
        for directory in self._layout.all_directories(self._name):
            for procs in _procs_files(directory):
                found.update(int(pid) for pid in _read(procs).split())
        return found

    def oom_kills(self) -> int:
        return counted_in(self._value(Controller.MEMORY, OOM_FILE), "oom_kill")

    def usage(self) -> Usage | None:
        """None when the cgroup is gone."""
        memory = self._value(Controller.MEMORY, MEMORY_FILE)
        if not memory:
            return None
        peak = self._value(Controller.MEMORY, MEMORY_PEAK_FILE) or memory
        cpu = self._value(Controller.CPUACCT, CPU_FILE) or "0"
        pids = _read(self._layout.directory(Controller.PIDS, self._name) / "pids.current") or "0"
        return Usage(int(memory), int(peak), cpu_seconds(self._layout.version, cpu), int(pids))

    def _value(self, controller: Controller, files: dict[int, str]) -> str:
        return _read(self._layout.directory(controller, self._name) / files[self._layout.version])

    async def kill_all(self) -> None:
        """SIGKILL until nobody is left. New processes are forbidden first, else a fork bomb could outrun the loop.

        What is frozen is killed before it thaws (version 1 keeps the signal until then), so nothing in it runs again.
        """
        with suppress(OSError):
            (self._layout.directory(Controller.PIDS, self._name) / "pids.max").write_text("0")
        async with asyncio.timeout(KILL_BOUND_S):
            delay_s = 0.001
            while pids := self.pids():
                self._kill(pids)
                if self._layout.freezer.version == 1 and self.is_frozen():
                    self.thaw()
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, 0.05)

    def _kill(self, pids: Iterable[int]) -> None:
        """Those that are in here. By descriptors, which are opened before one looks again who is: a number may name a
        stranger by now, and we are root on the host."""
        waiting = iter(pids)
        while some := set(islice(waiting, KILLED_AT_ONCE)):
            with ExitStack() as opened:
                held = {pid: pidfd for pid in some if (pidfd := _open_process(pid, opened)) is not None}
                for pid in held.keys() & self.pids():
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(held[pid], signal.SIGKILL)

    def remove(self) -> bool:
        """Take the directories away, nested ones first. False when somebody has joined, or is not reaped yet."""
        try:
            self._remove_directories()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def _remove_directories(self) -> None:
        for directory in self._layout.all_directories(self._name):
            for nested, _, _ in os.walk(directory, topdown=False):
                with suppress(FileNotFoundError):
                    os.rmdir(nested)


def _procs_files(directory: Path) -> Iterable[Path]:
    """Of the cgroup and all below it, as far as they are still there: a straggler may remove it under our feet."""
    return [Path(path, "cgroup.procs") for path, _, _ in os.walk(directory)]


def _open_process(pid: int, opened: ExitStack) -> int | None:
    """A descriptor of the process with this number, if there is one."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    opened.callback(os.close, pidfd)
    return pidfd


def _read(path: Path) -> str:
    """Empty when the file is not there or its cgroup is being removed (ENODEV)."""
    try:
        return path.read_text()
    except OSError:
        return ""
