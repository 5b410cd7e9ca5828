"""What is special about each OCI runtime: its flags, and how the configuration is bent for it. Pure but for `find`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cloche.errors import UnsupportedCapability
from cloche_server.drivers._base import ResourceLimits, SandboxSpec
from cloche_server.drivers._cgroup_files import MEBIBYTE, Limits
from cloche_server.drivers._launch_orders import Stage
from cloche_server.drivers._layout import SandboxPaths
from cloche_server.drivers._oci_spec import Isolation
from cloche_server.drivers._seccomp import build_profile

PINNED_RUNSC: Final = Path("/usr/local/lib/cloche/runsc")
"""Where ``make`` puts Debian 13's runsc; Debian 12's own (2022) knows no systrap and lacks three years of fixes."""

MEMORY_GUARD: Final = "CLOCHE_MEMORY_GUARD"
"""Set to 1 where the kernel cannot kill one process for the whole sandbox's memory: the user-space kernel is a single
process of the host. The guest then watches MemAvailable and kills the largest process in time; see docs/drivers.md."""

CONSOLE_PIDS: Final = 4
"""The two processes that bound the console, and a moment's overlap at start."""


GVISOR_TIMER_SLACK_NS: Final = 1_000_000
"""The pinned runsc looks every 0.4 ms whether its fast path pays, also when nothing happens. Measured for an idle sandbox:
1.8 to 2.3 % of a processor with the kernel's 0.05 ms, 1.4 % with 1 ms, 0.7 % with 4 ms, which doubled the time to start a
program. A sleep of 1 ms inside takes 1.5 instead of 1.1."""

FILES: Final = frozenset({"limits", "disk_limit", "pause", "file_snapshot", "volumes"})
"""What both can."""


class Runtime(Protocol):
    """One OCI runtime binary and the way this project drives it."""

    @property
    def name(self) -> str: ...
    @property
    def isolation(self) -> str: ...
    @property
    def strength(self) -> int:
        """Higher is a stronger boundary; the strongest that works is the default."""

    @property
    def capabilities(self) -> frozenset[str]: ...
    @property
    def shares_kernel(self) -> bool:
        """True: the sandbox gets a range of host user ids, and the host's kernel kills its processes one by one."""

    @property
    def how_to_get(self) -> str: ...

    @property
    def timer_slack_ns(self) -> int | None:
        """See `LaunchOrders`."""

    def find(self) -> Path | None:
        """The binary, or None when it is not installed."""

    def argv(self, binary: Path, paths: SandboxPaths, stage: Stage, spec: SandboxSpec) -> Sequence[str]:
        """The command that starts the sandbox and returns. With "memory_snapshot" and a checkpoint it makes all of it but
        its processes, which then come by its `control`."""

    def control(self, paths: SandboxPaths) -> Path:
        """Where a sandbox of a runtime with "memory_snapshot" takes orders, see `_control`."""

    def isolation_for(self, spec: SandboxSpec, stage: Stage, first_id: int | None, cgroup_path: str) -> Isolation: ...

    def host_limits(self, resources: ResourceLimits) -> Limits:
        """Limits of the cgroup, the runtime's own processes counted in."""

    def overhead_bytes(self, resources: ResourceLimits) -> int:
        """Memory the runtime itself needs; added to the limit when the sandbox runs, so that the guest gets its all."""

    @property
    def helper(self) -> str:
        """What to call the process of the runtime that a sandbox cannot do without, beside its first one; empty: none."""

    def is_helper(self, command_line: bytes, paths: SandboxPaths) -> bool:
        """True for the helper of the sandbox with these paths, and for no other process."""


def saves_memory(runtime: Runtime) -> bool:
    """With its sandboxes' files, so that a start goes on where the save was."""
    return "memory_snapshot" in runtime.capabilities


@dataclass(frozen=True, slots=True)
class Gvisor:
    """runsc. The copy-on-write layer is one unlinked file on the sandbox's disk image, so the image is its limit."""

    binary: Path | None = None
    name: str = "gvisor"
    isolation: str = "user-space kernel"
    strength: int = 20
    capabilities: frozenset[str] = FILES | {"memory_snapshot"}
    shares_kernel: bool = False
    timer_slack_ns: int | None = GVISOR_TIMER_SLACK_NS
    helper: str = "file proxy"
    how_to_get: str = f"run `make runsc` (installs Debian 13's runsc at {PINNED_RUNSC}), or set CLOCHE_RUNSC"

    def find(self) -> Path | None:
        return _first_existing(self.binary, PINNED_RUNSC, _which("runsc"))

    def argv(self, binary: Path, paths: SandboxPaths, stage: Stage, spec: SandboxSpec) -> Sequence[str]:
        command = ("run", "--detach") if spec.checkpoint is None else ("create",)
        return (str(binary), *_gvisor_flags(paths, stage), *command, *_bundle(paths), spec.sandbox_id)

    def control(self, paths: SandboxPaths) -> Path:
        return paths.runtime / f"runsc-{paths.home.name}.sock"

    def isolation_for(self, spec: SandboxSpec, stage: Stage, first_id: int | None, cgroup_path: str) -> Isolation:
        return Isolation(
            stage.root,
            None,
            seccomp=None,
            cgroup_path=cgroup_path,
            tmp_in_memory=True,
            env={MEMORY_GUARD: "1"},
        )

    def host_limits(self, resources: ResourceLimits) -> Limits:
        """A guest process costs one host process and some threads in it, and the Sentry has its own."""
        pids = GVISOR_BASE_PIDS + GVISOR_PIDS_PER_PROCESS * resources.max_processes
        return Limits(resources.memory_mb * MEBIBYTE, pids, resources.cpus)

    def overhead_bytes(self, resources: ResourceLimits) -> int:
        return GVISOR_BASE_OVERHEAD_BYTES + GVISOR_OVERHEAD_BYTES_PER_PROCESS * resources.max_processes

    def is_helper(self, command_line: bytes, paths: SandboxPaths) -> bool:
        return command_line.startswith(b"runsc-gofer\0") and f"\0--root={paths.runtime}\0".encode() in command_line


GVISOR_BASE_PIDS: Final = 256
GVISOR_PIDS_PER_PROCESS: Final = 4
"""Measured: 23 for an idle sandbox, and 2.2 for each process of a fork bomb."""

GVISOR_BASE_OVERHEAD_BYTES: Final = 64 * MEBIBYTE
GVISOR_OVERHEAD_BYTES_PER_PROCESS: Final = MEBIBYTE // 8
"""Measured: Sentry and gofer 20-35 MiB; a process costs the host kernel stacks and page tables of its stub. Without this
allowance the limit is hit while MemAvailable inside still shows 50-100 MiB, and a memory guard comes too late."""


@dataclass(frozen=True, slots=True)
class Runc:
    """runc: the host's kernel, with everything it has to keep processes apart."""

    binary: Path | None = None
    name: str = "runc"
    isolation: str = "namespaces"
    strength: int = 10
    capabilities: frozenset[str] = FILES
    shares_kernel: bool = True
    timer_slack_ns: int | None = None
    helper: str = ""
    how_to_get: str = "apt-get install runc"

    def find(self) -> Path | None:
        return _first_existing(self.binary, _which("runc"))

    def argv(self, binary: Path, paths: SandboxPaths, stage: Stage, spec: SandboxSpec) -> Sequence[str]:
        return (str(binary), f"--root={paths.runtime}", "run", "--detach", *_bundle(paths), spec.sandbox_id)

    def control(self, paths: SandboxPaths) -> Path:
        raise UnsupportedCapability("runc saves files only", hint="memory needs driver gvisor")

    def isolation_for(self, spec: SandboxSpec, stage: Stage, first_id: int | None, cgroup_path: str) -> Isolation:
        return Isolation(stage.root, first_id, seccomp=build_profile(), cgroup_path=cgroup_path, tmp_in_memory=False)

    def host_limits(self, resources: ResourceLimits) -> Limits:
        pids = resources.max_processes + CONSOLE_PIDS
        return Limits(resources.memory_mb * MEBIBYTE, pids, resources.cpus)

    def overhead_bytes(self, resources: ResourceLimits) -> int:
        """runc itself is gone once the sandbox runs."""
        return 0

    def is_helper(self, command_line: bytes, paths: SandboxPaths) -> bool:
        return False


def _gvisor_flags(paths: SandboxPaths, stage: Stage) -> Sequence[str]:
    return (
        "--platform=systrap",
        "--directfs=false",  # the Sentry is nobody without capabilities; with it, it is root (docs/security.md)
        "--network=none",
        "--host-uds=open",
        "--file-access-mounts=shared",  # sees a socket that a new server makes, and what others write to a volume
        f"--overlay2=root:dir={stage.disk}",
        f"--root={paths.runtime}",
    )


def _bundle(paths: SandboxPaths) -> Sequence[str]:
    return (f"--pid-file={paths.pid}", f"--bundle={paths.bundle}")


def _which(name: str) -> Path | None:
    found = shutil.which(name, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return Path(found) if found else None


def _first_existing(*candidates: Path | None) -> Path | None:
    return next((path for path in candidates if path is not None and path.exists()), None)
