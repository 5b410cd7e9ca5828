"""The directories of a server: made with tight modes, and used by one server at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cloche.errors import Conflict, InvalidRequest


@contextmanager
def exclusive(*directories: Path) -> Iterator[None]:
    """Holds ``server.lock`` in each. `Conflict` when another server has one; a killed server's lock is free at once."""
    with ExitStack() as stack:
        for directory in directories:
            stack.enter_context(_locked(directory))
        yield


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(directory / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidRequest(
            f"{directory} cannot be used: {error.strerror}", hint="choose others with --data-dir and --run-dir"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise Conflict(
            f"another server (process {holder}) uses {directory}",
            hint="stop it, or choose another --data-dir and --run-dir",
            details={"kind": "server", "directory": str(directory)},
        ) from error
    try:
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
