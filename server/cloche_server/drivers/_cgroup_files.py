"""Cgroup file names and values, for version 1 and version 2. Pure: nothing here touches a file.

Both versions exist in the wild (and hybrids of them); which one a machine has is decided by what is mounted, see
`find_layout`. A *write* is a file name relative to the sandbox's cgroup and the text to put in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

CPU_PERIOD_US: Final = 100_000
"""The kernel's default bandwidth period (Documentation/scheduler/sched-bwc.rst)."""

MIN_CPU_QUOTA_US: Final = 1_000
"""The smallest quota the kernel takes (sched-bwc.rst)."""

MEBIBYTE: Final = 1024 * 1024

NORMAL_WEIGHT: Final = 100
"""The kernel's default for every cgroup (cgroup-v2.rst, "cpu.weight")."""

EARLY_WEIGHT: Final = 1
"""The least there is: who stands still to be saved goes first. With 25 on two cores its pause was longer by a half, for a
child that was ready 30 ms sooner."""


class Controller(StrEnum):
    """The controllers this project uses; CPUACCT is part of CPU on version 2."""

    MEMORY = "memory"
    PIDS = "pids"
    CPU = "cpu"
    CPUACCT = "cpuacct"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox may use; ``pids`` counts host processes and threads."""

    memory_bytes: int
    pids: int
    cpus: float


@dataclass(frozen=True, slots=True)
class Write:
    """``optional``: the kernel may lack the file (swap accounting off), and the limit then holds without it."""

    file: str
    value: str
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Freezer:
    """The hierarchy in which processes are frozen: version 2 wherever it is mounted, even without any controller
    (``cgroup.freeze`` needs none, Linux 5.2), else version 1's own."""

    version: int
    mount: Path

    @property
    def file(self) -> str:
        return "cgroup.freeze" if self.version == 2 else "freezer.state"

    def word(self, *, frozen: bool) -> str:
        """What is written into ``file``."""
        if self.version == 2:
            return "1" if frozen else "0"
        return "FROZEN" if frozen else "THAWED"

    @property
    def done_file(self) -> str:
        """Says when the last process stands still."""
        return "cgroup.events" if self.version == 2 else "freezer.state"

    def is_done(self, text: str) -> bool:
        return counted_in(text, "frozen") == 1 if self.version == 2 else text.strip() == "FROZEN"

    def is_wanted(self, text: str) -> bool:
        """Of the contents of ``file``: frozen, or about to be (FREEZING)."""
        return text.strip() == "1" if self.version == 2 else text.strip() in ("FROZEN", "FREEZING")


@dataclass(frozen=True, slots=True)
class CgroupLayout:
    """Mount point per controller. On version 2 all of them are the same directory."""

    version: int
    mounts: Mapping[Controller, Path]
    freezer: Freezer
    also: Sequence[Path] = ()
    """Other v1 hierarchies, in which the runtime may make a directory of the same name; only removed, never written."""

    def directory(self, controller: Controller, name: str) -> Path:
        return self.mounts[controller] / name

    def directories(self, name: str) -> list[Path]:
        """Every cgroup directory a process of ``name`` is put in, without repeats."""
        return list(dict.fromkeys(mount / name for mount in [*self.mounts.values(), self.freezer.mount]))

    def all_directories(self, name: str) -> list[Path]:
        """`directories`, and those the runtime may have added."""
        return list(dict.fromkeys(self.directories(name) + [mount / name for mount in self.also]))


def find_layout(mountinfo: str, v2_controllers: str) -> CgroupLayout:
    """What ``/proc/self/mountinfo`` says is mounted; ``v2_controllers`` is ``cgroup.controllers`` of the v2 root.

    Version 2 is used when it has all three controllers, else version 1; `LookupError` names what neither has.
    """
    v1, also, v2 = _cgroup_mounts(mountinfo)
    needed = {Controller.MEMORY, Controller.PIDS, Controller.CPU}
    if v2 is not None and needed <= set(v2_controllers.split()):
        return CgroupLayout(2, dict.fromkeys(Controller, v2), Freezer(2, v2))
    freezer = Freezer(2, v2) if v2 is not None else _freezer_v1(mountinfo)
    missing = sorted(set(Controller) - set(v1)) + ([] if freezer else ["freezer"])
    if freezer is None or missing:
        raise LookupError(f"no cgroup controller for {', '.join(missing)}, neither version 1 nor version 2")
    return CgroupLayout(1, v1, freezer, [*also, *([v2] if v2 else [])])


def _freezer_v1(mountinfo: str) -> Freezer | None:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup ") and "freezer" in after.split()[-1].split(","):
            return Freezer(1, Path(before.split()[4]))
    return None


def _cgroup_mounts(mountinfo: str) -> tuple[dict[Controller, Path], list[Path], Path | None]:
    v1: dict[Controller, Path] = {}
    also: list[Path] = []
    v2: Path | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        mount_point = Path(before.split()[4])
        fs_type, _, options = after.split(" ", 2)
        if fs_type == "cgroup2":
            v2 = mount_point
        elif fs_type == "cgroup":
            names = {Controller(n) for n in options.replace(" ", ",").split(",") if n in set(Controller)}
            v1.update(dict.fromkeys(names, mount_point))
            also += [] if names else [mount_point]
    return v1, also, v2


def limit_writes(version: int, limits: Limits) -> Mapping[Controller, Sequence[Write]]:
    """The writes that set ``limits``, in order: v1 refuses a memsw limit below the memory limit."""
    quota_us = max(MIN_CPU_QUOTA_US, round(limits.cpus * CPU_PERIOD_US))
    memory = str(limits.memory_bytes)
    if version == 2:
        return {
            Controller.MEMORY: [Write("memory.max", memory), Write("memory.swap.max", "0", optional=True)],
            Controller.PIDS: [Write("pids.max", str(limits.pids))],
            Controller.CPU: [Write("cpu.max", f"{quota_us} {CPU_PERIOD_US}")],
        }
    return {
        Controller.MEMORY: [
            Write("memory.limit_in_bytes", memory),
            Write("memory.memsw.limit_in_bytes", memory, optional=True),
            Write("memory.swappiness", "0", optional=True),
        ],
        Controller.PIDS: [Write("pids.max", str(limits.pids))],
        Controller.CPU: [Write("cpu.cfs_period_us", str(CPU_PERIOD_US)), Write("cpu.cfs_quota_us", str(quota_us))],
    }


def weight_writes(version: int, weight: int) -> Sequence[Write]:
    """The share of the processors, when there is not enough for all. Version 1 counts 1024 where version 2 counts 100."""
    return [
        Write("cpu.weight", str(weight)) if version == 2 else Write("cpu.shares", str(max(2, weight * 1024 // 100)))
    ]


def raise_memory_writes(version: int, memory_bytes: int) -> Sequence[Write]:
    """In order: on the way up, v1 wants memsw (memory and swap together) first."""
    if version == 2:
        return [Write("memory.max", str(memory_bytes))]
    value = str(memory_bytes)
    return [Write("memory.memsw.limit_in_bytes", value, optional=True), Write("memory.limit_in_bytes", value)]


def lower_memory_writes(version: int, memory_bytes: int) -> Sequence[Write]:
    """In order: on the way down, v1 wants memory first."""
    return list(reversed(raise_memory_writes(version, memory_bytes)))


def unreclaimable_bytes(used_bytes: int, stat: str) -> int:
    """Of what is used, as ``memory.stat`` tells: without the page cache of files, which the kernel gives back."""
    return used_bytes - counted_in(stat, "active_file") - counted_in(stat, "inactive_file")


def counted_in(text: str, key: str) -> int:
    """The number after ``key`` in a flat keyed file (``memory.events``, ``cpu.stat``); 0 when it is not there."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


OOM_FILE: Final = {1: "memory.oom_control", 2: "memory.events"}
"""Both have a line ``oom_kill <count>`` (v1 since Linux 4.13)."""

MEMORY_LIMIT_FILE: Final = {1: "memory.limit_in_bytes", 2: "memory.max"}
MEMORY_FILE: Final = {1: "memory.usage_in_bytes", 2: "memory.current"}
MEMORY_PEAK_FILE: Final = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}
"""``memory.peak`` exists since Linux 5.19."""


def cpu_seconds(version: int, text: str) -> float:
    """From ``cpu.stat`` (v2, microseconds) or ``cpuacct.usage`` (v1, nanoseconds)."""
    return counted_in(text, "usage_usec") / 1e6 if version == 2 else int(text) / 1e9


CPU_FILE: Final = {1: "cpuacct.usage", 2: "cpu.stat"}
