"""The words every driver shares: what a sandbox is made from, what can be asked of a driver, what it answers.

This file knows no runtime, no cgroup and no path below a sandbox's directory. The server codes against it alone.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

GUEST_ARGV: Final = ("/opt/cloche/bin/python", "-OO", "-m", "cloche_guest")
"""PID 1 of every sandbox, as the images have it."""

UPLINK_MOUNT: Final = "/run/cloche"
"""Where ``uplink_directory`` is seen inside."""

RESERVED_TARGETS: Final = (
    "/proc",
    "/sys",
    "/dev",
    "/run",
    "/opt/cloche",
    "/etc",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
)
"""Where no volume may be mounted: it would hide what the guest or the boundary needs."""

_SANDBOX_ID: Final = re.compile(r"[a-z0-9]{20}")


class ResourceLimits(Protocol):
    """The fields of `cloche.models.Resources`; units are in the names (MiB)."""

    @property
    def cpus(self) -> float: ...
    @property
    def memory_mb(self) -> int: ...
    @property
    def max_processes(self) -> int: ...
    @property
    def disk_mb(self) -> int: ...


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A host directory seen inside at ``target`` (absolute), never with device files or set-user-id programs in effect.

    Several sandboxes may have the same ``source``; each sees what the others write.
    """

    source: Path
    target: str
    read_only: bool = False

    def __post_init__(self) -> None:
        check_target(self.target)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What `Driver.checkpoint` wrote. ``files`` are all names in the directory, ``size_bytes`` what they take on disk.

    ``pause_s`` is how long the sandbox stood still, as far as the driver can tell; 0 when nothing ran.
    """

    memory: bool
    pause_s: float
    files: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything a driver needs to start one life of a sandbox.

    ``rootfs`` is never written to. ``uplink_directory`` is a host directory, mounted read-only at `UPLINK_MOUNT`; a
    socket made in it later is seen inside at once, and only root inside may connect to one of mode 0600.
    ``guest_env`` wins over ``image_env``. Nothing inside gains privileges by exec, whatever its set-user-id bits say:
    ``sudo`` is a service of PID 1. With ``sudo=False`` PID 1 itself has fewer capabilities.

    ``checkpoint`` is a directory that this driver's `checkpoint` wrote, from a sandbox of the same image, resources and
    volume targets: with memory in it the processes go on where they were, without it they start anew over its files.
    It is only read; ids, epoch and uplink directory may be others.
    """

    sandbox_id: str
    epoch: str
    rootfs: Path
    resources: ResourceLimits
    uplink_directory: Path
    image_env: Mapping[str, str] = field(default_factory=dict)
    guest_argv: Sequence[str] = GUEST_ARGV
    guest_env: Mapping[str, str] = field(default_factory=dict)
    sudo: bool = True
    checkpoint: Path | None = None
    volumes: Sequence[VolumeMount] = ()

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)
        targets = [volume.target for volume in self.volumes]
        if len(set(targets)) < len(targets):
            raise ValueError(f"two volumes at one path: {', '.join(targets)}")

    @property
    def volumes_in_order(self) -> Sequence[VolumeMount]:
        """By target: one within another comes after it."""
        return sorted(self.volumes, key=lambda volume: volume.target)


def is_sandbox_id(name: str) -> bool:
    return _SANDBOX_ID.fullmatch(name) is not None


def check_sandbox_id(sandbox_id: str) -> None:
    """Ids become file names, cgroup names and host names; `ValueError` for anything but 20 of [a-z0-9]."""
    if not is_sandbox_id(sandbox_id):
        raise ValueError(f"not a sandbox id: {sandbox_id!r}")


def check_target(target: str) -> None:
    """`ValueError` for what is no plain absolute path, or is a place that sandboxes need for themselves."""
    if not target.startswith("/") or "\0" in target or any(part in ("", ".", "..") for part in target[1:].split("/")):
        raise ValueError(f"not a plain absolute path: {target!r}")
    if any(f"{target}/".startswith(f"{taken}/") or taken.startswith(f"{target}/") for taken in RESERVED_TARGETS):
        raise ValueError(f"a volume cannot be mounted at {target}")


class RunState(StrEnum):
    """UNKNOWN: this machine has no process for that id and no record of how it ended. PAUSED: its processes are there,
    frozen."""

    RUNNING = "running"
    PAUSED = "paused"
    EXITED = "exited"
    UNKNOWN = "unknown"


class ExitReason(StrEnum):
    """Why a sandbox ended. LOST: it is gone, and nobody was there to see its exit status."""

    EXIT = "exit"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """``exit_code`` only with reason EXIT, ``signal`` (a number) only with SIGNAL or OUT_OF_MEMORY; never invented.

    ``output`` is the end of what the sandbox's first process and the runtime wrote, for people; only when exited.
    ``helper`` names the runtime's process that ended and took the sandbox with it; empty: it was its first process.
    """

    state: RunState
    reason: ExitReason | None = None
    exit_code: int | None = None
    signal: int | None = None
    output: str = ""
    helper: str = ""

    @property
    def is_alive(self) -> bool:
        """Running, or frozen and able to go on."""
        return self.state in (RunState.RUNNING, RunState.PAUSED)


@dataclass(frozen=True, slots=True)
class Usage:
    """Read from the cgroup: what the sandbox costs the host, with the runtime's own processes counted in.

    ``disk_bytes`` is what the image of its disk takes on the host's disk.
    """

    memory_bytes: int
    memory_peak_bytes: int
    cpu_seconds: float
    pids: int
    disk_bytes: int = 0


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Outcome of really starting a tiny sandbox. ``why_not`` and ``how_to_fix`` are set exactly when it failed."""

    driver: str
    isolation: str
    works: bool
    version: str | None = None
    capabilities: frozenset[str] = frozenset()
    why_not: str | None = None
    how_to_fix: str | None = None
    start_seconds: float | None = None


WhenSaved = asyncio.Future[None]
"""Done when the checkpoint that a start is to come from is whole; its exception says why it never will be."""

Probe = Callable[[], Awaitable[None]]
"""Returns once the guest has proved it is alive (said hello on the uplink); may wait for ever, the driver bounds it."""


class Driver(Protocol):
    """Makes sandboxes. Every method may be called by a new server process for sandboxes an old one started."""

    @property
    def name(self) -> str: ...

    @property
    def isolation(self) -> str:
        """The boundary in a few words."""

    @property
    def capabilities(self) -> frozenset[str]:
        """Of "limits", "disk_limit", "pause", "memory_snapshot", "file_snapshot", "volumes"."""

    async def self_test(self) -> SelfTest:
        """Start a real tiny sandbox, hear from it, remove it. Never raises for a driver that does not work."""

    async def start(self, spec: SandboxSpec, probe: Probe | None = None, saved: WhenSaved | None = None) -> None:
        """With ``saved``, ``spec.checkpoint`` may still be written: what can be done before is, and at the least nothing of
        the checkpoint is read. What ``saved`` raises ends the start, and nothing of it is left. It is not bounded here.

        Returns with the sandbox running (and ``probe`` passed). Bounded; a start that hangs or dies is removed and
        tried once again, then `SandboxStartFailed` with the runtime's own words and nothing left behind. The same holds
        for a start from ``spec.checkpoint``, which is never changed by it."""

    async def inspect(self, sandbox_id: str) -> SandboxStatus:
        """What is true now."""

    def is_dying(self, sandbox_id: str) -> bool:
        """It was killed while it stood still, and ends when it goes on: with cgroups of version 1 it still counts as there."""

    async def wait_exit(self, sandbox_id: str) -> SandboxStatus:
        """Returns when the sandbox is neither running nor paused; at once when it was not."""

    async def pause(self, sandbox_id: str) -> None:
        """Freeze every process of it; nothing when it is frozen. `SandboxNotRunning` when there is nothing to freeze."""

    async def resume(self, sandbox_id: str) -> None:
        """Undo `pause`; nothing when it runs. `SandboxNotRunning` when there is nothing to go on."""

    async def checkpoint(self, sandbox_id: str, directory: Path, *, keep_running: bool) -> Checkpoint:
        """Write its files, and its memory where the driver can ("memory_snapshot"), of one instant into ``directory``.

        ``directory`` must not exist; it is made with mode 0700. The sandbox may be paused, and is as before afterwards;
        with ``keep_running=False`` nothing of it is left but the directory, as after `destroy`, and the directory has
        its name once all of it is on the host's disk (``<name>.tmp`` before). On any failure the directory is gone and
        the sandbox as it was: `StorageFull`, `SandboxNotRunning`, `InternalError` with the runtime's words (a runtime
        that saves memory refuses while host connections are open: close the uplinks).
        Bounded by 60 s and 30 s for each GiB of memory or files.
        """

    async def list(self) -> list[str]:
        """Ids of all this driver has on this machine, running or half made."""

    async def destroy(self, sandbox_id: str) -> None:
        """Remove every process, mount, cgroup and file of it; a start under way is stopped too. Idempotent."""

    async def oom_kills(self, sandbox_id: str) -> int:
        """Processes of this sandbox the kernel killed at its memory limit so far; 0 when it is unknown here."""

    async def usage(self, sandbox_id: str) -> Usage:
        """`SandboxNotRunning` when there is nothing to measure."""

    async def console(self, sandbox_id: str) -> str:
        """The first 64 KiB of what the runtime and PID 1 wrote, for people; empty when there is none. Guest-written."""

    def close(self) -> None:
        """Give back descriptors. Sandboxes go on."""
