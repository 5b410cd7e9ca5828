"""What the launcher is told to do. Pure data, written as JSON by the driver and read by `_launcher`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Final

STAGES: Final = ("/mnt", "/media", "/srv", "/opt")
"""Directories every Debian has and no runtime needs. The launcher mounts over one of them, in its own namespace."""

CONSOLE_BYTES: Final = 65_536
"""Enough for a traceback and the runtime's complaints; the rest of a chatty guest is thrown away."""

INODE_RATIO_BYTES: Final = 16_384
"""mke2fs's own default: one inode per 16 KiB. What is small and many fills the inodes, what is big fills the blocks."""


@dataclass(frozen=True, slots=True)
class LaunchOrders:
    """``first_id`` is None for a runtime that needs no user namespace (gVisor makes its own)."""

    join_files: Sequence[str]
    stage: str
    disk: str
    disk_bytes: int
    blank_disk: str
    """Where a blank one of this size is kept for all starts; made when it is missing."""
    rootfs: str
    uplink: str
    console: str
    first_id: int | None
    argv: Sequence[str]
    memory_bytes: int
    """The limit of the cgroup once the sandbox runs; for who raises it for a while."""
    disk_source: str | None = None
    """An image that the disk becomes a copy of, instead of a blank one."""
    volumes: Sequence[tuple[str, bool]] = ()
    """Host directory, read-only; the n-th is attached at `Stage.volume` (n)."""
    timer_slack_ns: int | None = None
    """How much later than asked for a timer may go off; None leaves the kernel's 50 microseconds."""
    runtime_version: str = ""
    """Of the binary in ``argv``; for the record of a checkpoint, as the file may be another one by then."""
    volume_targets: Sequence[str] = ()
    """Where they are seen inside: directories are made there, and the record of a checkpoint names them."""
    console_bytes: int = CONSOLE_BYTES
    inode_ratio_bytes: int = INODE_RATIO_BYTES

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the launcher puts things; the OCI configuration points there."""

    directory: str

    @property
    def disk(self) -> str:
        return f"{self.directory}/disk"

    @property
    def lower(self) -> str:
        return f"{self.directory}/lower"

    @property
    def root(self) -> str:
        return f"{self.directory}/root"

    @property
    def uplink(self) -> str:
        return f"{self.directory}/uplink"

    def volume(self, number: int) -> str:
        return f"{self.directory}/volume-{number}"


def pick_stage(needed: Sequence[PurePath]) -> Stage:
    """The first of `STAGES` that hides none of the paths ``needed`` later. `LookupError` when each hides one."""
    for stage in STAGES:
        if not any(path.is_relative_to(stage) for path in needed):
            return Stage(stage)
    raise LookupError(f"something needed lies below each of {', '.join(STAGES)}")


def launcher_environment() -> Mapping[str, str]:
    """All the runtime sees: the server's own environment may hold secrets."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
