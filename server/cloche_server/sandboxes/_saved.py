"""What is kept of sandboxes that are suspended or stopped: one directory each, and who their guests were.

``<data dir>/suspended/<sandbox id>``: as the driver's `checkpoint` wrote it. It is there from the moment something is saved
until a guest that came out of it has answered; so in every state between there is either a process or this directory.
What has this name is whole: it is written and removed under others, which are no sandbox' and go at the next start.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cloche_server.drivers import Checkpoint, make_durable

GONE: Final = ".gone"
"""Behind the name of what is being removed."""


@dataclass(frozen=True, slots=True)
class SavedIdentity:
    """Who the guest in a checkpoint with memory believes to be. All copies of it say this until they are told better."""

    sandbox_id: str
    epoch: str
    session_hash: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, str] | None) -> SavedIdentity | None:
        """None: nothing was saved with memory."""
        if not found or "session_hash" not in found:
            return None
        return cls(found["sandbox_id"], found["epoch"], found["session_hash"])


@dataclass(frozen=True, slots=True)
class Saved:
    """``identity`` is None when only files were saved."""

    checkpoint: Checkpoint
    identity: SavedIdentity | None


class SavedStates:
    """The directories."""

    def __init__(self, root: Path) -> None:
        self.root: Final = root

    def prepare(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.root.chmod(0o700)

    def directory(self, sandbox_id: str) -> Path:
        return self.root / sandbox_id

    def exists(self, sandbox_id: str) -> bool:
        return self.directory(sandbox_id).is_dir()

    def on_disk(self) -> list[str]:
        return [path.name for path in self.root.iterdir()]

    def make_durable(self, sandbox_id: str) -> None:
        """Blocks until a power failure can no longer lose it, nor its name."""
        make_durable(self.directory(sandbox_id))
        descriptor = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, sandbox_id: str) -> None:
        """Blocks. Idempotent. By way of a rename, so that what is half removed never looks whole."""
        doomed = self.directory(sandbox_id + GONE)
        shutil.rmtree(doomed, ignore_errors=True)
        with suppress(FileNotFoundError):
            self.directory(sandbox_id).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
