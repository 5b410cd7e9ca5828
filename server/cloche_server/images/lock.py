"""One build at a time on one machine: builders share layers and working directories.

The lock is a `flock`, so it goes with its holder however that ends. The builder's own process inherits the descriptor:
when a build is killed, the next one starts only when the killed one's builder has ended, too.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cloche_server.images.errors import BuildLockTimeout

DEFAULT_WAIT_S: Final = 1800.0
"""A cold build of the Python image takes two minutes; a slow network may make that twenty."""
_POLL_S: Final = 0.2
_REPORT_EVERY_S: Final = 10.0


@contextmanager
def build_lock(path: Path, report: Callable[[str], None], wait_s: float = DEFAULT_WAIT_S) -> Iterator[int]:
    """Holds the lock; yields its descriptor. Says so while it waits; raises `BuildLockTimeout` after ``wait_s``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _acquire(descriptor, path, report, wait_s)
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, path: Path, report: Callable[[str], None], wait_s: float) -> None:
    started = time.monotonic()
    next_report = 0.0
    while not _try(descriptor):
        waited = time.monotonic() - started
        if waited >= wait_s:
            raise BuildLockTimeout(
                f"another image build held {path} for {wait_s:.0f} s",
                hint="wait for it to end, or stop it, then try again",
                details={"bound_s": wait_s},
            )
        if waited >= next_report:
            report(f"another image build is running; waiting for it ({waited:.0f} of at most {wait_s:.0f} s)")
            next_report += _REPORT_EVERY_S
        time.sleep(_POLL_S)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
