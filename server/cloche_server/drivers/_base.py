"""The words every driver shares: what a sandbox is made from, what can be asked of a driver, what it answers.

This file knows no runtime, no cgroup and no path below a sandbox's directory. The server codes against it alone.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

GUEST_ARGV: Final = ("/opt/cloche/bin/python", "-m", "cloche_guest")
"""PID 1 of every sandbox, as the images have it."""

UPLINK_MOUNT: Final = "/run/cloche"
"""Where ``uplink_directory`` is seen inside."""

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
class SandboxSpec:
    """Everything a driver needs to start one life of a sandbox.

    ``rootfs`` is never written to. ``uplink_directory`` is a host directory, mounted read-only at `UPLINK_MOUNT`; a
    socket made in it later is seen inside at once, and only root inside may connect to one of mode 0600.
    ``guest_env`` wins over ``image_env``. Nothing inside gains privileges by exec, whatever its set-user-id bits say:
    ``sudo`` is a service of PID 1. With ``sudo=False`` PID 1 itself has fewer capabilities.
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

    def __post_init__(self) -> None:
        check_sandbox_id(self.sandbox_id)


def is_sandbox_id(name: str) -> bool:
    return _SANDBOX_ID.fullmatch(name) is not None


def check_sandbox_id(sandbox_id: str) -> None:
    """Ids become file names, cgroup names and host names; `ValueError` for anything but 20 of [a-z0-9]."""
    if not is_sandbox_id(sandbox_id):
        raise ValueError(f"not a sandbox id: {sandbox_id!r}")


class RunState(StrEnum):
    """UNKNOWN: this machine has no process for that id and no record of how it ended."""

    RUNNING = "running"
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
    """

    state: RunState
    reason: ExitReason | None = None
    exit_code: int | None = None
    signal: int | None = None
    output: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Read from the cgroup: what the sandbox costs the host, with the runtime's own processes counted in."""

    memory_bytes: int
    memory_peak_bytes: int
    cpu_seconds: float
    pids: int


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
    def capabilities(self) -> frozenset[str]: ...

    async def self_test(self) -> SelfTest:
        """Start a real tiny sandbox, hear from it, remove it. Never raises for a driver that does not work."""

    async def start(self, spec: SandboxSpec, probe: Probe | None = None) -> None:
        """Returns with the sandbox running (and ``probe`` passed). Bounded; a start that hangs or dies is removed and
        tried once again, then `SandboxStartFailed` with the runtime's own words and nothing left behind."""

    async def inspect(self, sandbox_id: str) -> SandboxStatus:
        """What is true now."""

    async def wait_exit(self, sandbox_id: str) -> SandboxStatus:
        """Returns when the sandbox is not running; at once when it was not."""

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
