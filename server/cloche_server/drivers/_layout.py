"""Where the things of one sandbox are. Pure: every path follows from the id, so a new process finds them all.

::

    <run_dir>/<driver>/<id>/
        bundle/config.json          OCI configuration
        launch.json                 the launcher's orders
        runtime/                    the runtime's own state directory, private to this sandbox
        console                     the first 64 KiB of what the runtime and PID 1 wrote
        pid                         host pid of the sandbox's first process
        exit                        how it ended, once that is known
        removing                    from the first moment of its removal on
        saving                      locked by the server that froze it to save it, see `_saving`
    <run_dir>/ids/<slot>            symlink to the id that owns this range of user ids (see `_idmap`)
    <data_dir>/disks/<driver>/<id>.img   the sandbox's disk: an ext4 image, sparse
    <data_dir>/disks/blank/      blank disks that new ones are copies of, one for each size

The directory is made first and removed last, so whatever exists of a sandbox, `list` shows its id.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SandboxPaths:
    """All paths of one sandbox."""

    home: Path
    disk: Path

    @property
    def bundle(self) -> Path:
        return self.home / "bundle"

    @property
    def orders(self) -> Path:
        return self.home / "launch.json"

    @property
    def runtime(self) -> Path:
        return self.home / "runtime"

    @property
    def console(self) -> Path:
        return self.home / "console"

    @property
    def exit(self) -> Path:
        return self.home / "exit"

    @property
    def removing(self) -> Path:
        return self.home / "removing"

    @property
    def saving(self) -> Path:
        return self.home / "saving"

    @property
    def pid(self) -> Path:
        return self.home / "pid"


@dataclass(frozen=True, slots=True)
class Layout:
    """The two roots of one driver: ``run_dir`` need not survive a reboot, ``data_dir`` has room for disks."""

    run_dir: Path
    data_dir: Path
    driver: str

    @property
    def homes(self) -> Path:
        return self.run_dir / self.driver

    @property
    def disks(self) -> Path:
        return self.data_dir / "disks" / self.driver

    def blank_disk(self, size_bytes: int) -> Path:
        """The number in front changes with what `_launcher.format_disk` makes."""
        return self.data_dir / "disks/blank" / f"1-{size_bytes}.img"

    @property
    def id_slots(self) -> Path:
        return self.run_dir / "ids"

    def of(self, sandbox_id: str) -> SandboxPaths:
        return SandboxPaths(home=self.homes / sandbox_id, disk=self.disks / f"{sandbox_id}.img")
