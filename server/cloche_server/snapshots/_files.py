"""The directories of snapshots: ``<data dir>/snapshots/<id>`` is whole, ``<id>.tmp`` is being written.

Everything here blocks on the disk, so it is called in threads. The directory is 0700, as the environment in the manifest
and the memory of the sandbox are secret.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cloche.errors import SnapshotBroken, StorageFull
from cloche_server.snapshots._digest import digest_of_file
from cloche_server.snapshots._manifest import MANIFEST, Manifest
from cloche_server.state import SavedFile

UNFINISHED: Final = ".tmp"

Identity = tuple[int, int, int]
"""Inode, size and mtime of a file: as long as they stay, nobody but the disk itself has changed it."""


class SnapshotFiles:
    """One for the server. Remembers what it has verified, as long as it lives."""

    def __init__(self, root: Path) -> None:
        self.root: Final = root
        self._verified: dict[tuple[str, str], Identity] = {}
        self._lock = threading.Lock()

    def prepare(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.root.chmod(0o700)

    def directory(self, snapshot_id: str) -> Path:
        return self.root / snapshot_id

    def unfinished(self, name: str) -> Path:
        """Where something is written before it has its name; removed at the next start of the server."""
        return self.root / (name + UNFINISHED)

    def measure(self, directory: Path, names: Sequence[str]) -> list[SavedFile]:
        """Sizes and digests, once the content is on the disk."""
        return [self._measure_one(directory / name) for name in names]

    @staticmethod
    def _measure_one(path: Path) -> SavedFile:
        with path.open("rb") as file:
            os.fsync(file.fileno())
        return SavedFile(path.name, path.stat().st_size, digest_of_file(path))

    def publish(self, snapshot_id: str, manifest: Manifest) -> int:
        """Gives the unfinished directory its name, whole and durable. Returns the bytes it takes on the disk."""
        directory = self.unfinished(snapshot_id)
        with storage_errors(), (directory / MANIFEST).open("wb") as file:
            file.write(manifest.model_dump_json(indent=2).encode())
            file.flush()
            os.fsync(file.fileno())
        for file_name in (one.name for one in manifest.files):
            self._remember(snapshot_id, directory / file_name)
        sync_directory(directory)
        directory.rename(self.directory(snapshot_id))
        sync_directory(self.root)
        return sum(path.stat().st_blocks * 512 for path in self.directory(snapshot_id).iterdir())

    def verify(self, snapshot_id: str, files: Sequence[SavedFile]) -> None:
        """`SnapshotBroken` unless every file is what was saved. Reads each file once in the life of this process."""
        for file in files:
            path = self.directory(snapshot_id) / file.name
            try:
                if path.stat().st_size != file.size:
                    raise broken(snapshot_id, file.name, f"it has {path.stat().st_size} bytes, not {file.size}")
                with self._lock:
                    known = self._verified.get((snapshot_id, file.name)) == identity_of(path)
                if not known and digest_of_file(path) != file.digest:
                    raise broken(snapshot_id, file.name, "its content has changed")
                self._remember(snapshot_id, path)
            except OSError as error:
                raise broken(snapshot_id, file.name, error.strerror or str(error)) from error

    def _remember(self, snapshot_id: str, path: Path) -> None:
        with self._lock:
            self._verified[snapshot_id, path.name] = identity_of(path)

    def remove(self, snapshot_id: str) -> None:
        """Its directory, whole or unfinished; nothing when there is none. By way of a rename, so that what is half
        removed never looks whole."""
        doomed = self.unfinished(snapshot_id + ".gone")
        with contextlib.suppress(FileNotFoundError):
            self.directory(snapshot_id).rename(doomed)
        for path in (doomed, self.unfinished(snapshot_id)):
            shutil.rmtree(path, ignore_errors=True)
        with self._lock:
            for key in [key for key in self._verified if key[0] == snapshot_id]:
                del self._verified[key]

    def names(self) -> list[str]:
        """Of all directories there are, unfinished ones included."""
        return [path.name for path in self.root.iterdir()] if self.root.is_dir() else []


def identity_of(path: Path) -> Identity:
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def check_content(snapshot_id: str, files: Sequence[SavedFile], expected: Manifest) -> None:
    """`SnapshotBroken` unless all files are what ``expected`` says."""
    wanted = {file.name: (file.size, file.digest) for file in expected.files}
    for file in files:
        if wanted.get(file.name) != (file.size, file.digest):
            raise broken(snapshot_id, file.name, "its content is not what the manifest says")


def broken(snapshot_id: str, file: str, why: str) -> SnapshotBroken:
    return SnapshotBroken(
        f"snapshot {snapshot_id} cannot be used: {file}: {why}",
        hint="delete it; something other than the server has changed its files, or the disk fails",
        details={"id": snapshot_id, "file": file, "why": why},
    )


class storage_errors:  # noqa: N801 - used as a function
    """A full disk becomes `StorageFull`."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull("the server's disk is full", hint="its operator has to free space") from error
