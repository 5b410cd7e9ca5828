"""When names came to or went from the directories that modules are found in: whether pip was here."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable

STALE = "packages were installed or removed since its imports"


def package_directories() -> set[str]:
    """All that modules are looked for in now."""
    return {*sys.path, *site.getsitepackages(), site.getusersitepackages()}


def package_times(directories: Iterable[str]) -> dict[str, int]:
    """Nanoseconds; 0 for a directory that is not there."""
    return {directory: _changed_ns(directory) for directory in directories}


def _changed_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
