"""rlimits and the tie to the guest, applied before anything else runs."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import signal
from collections.abc import Mapping
from pathlib import Path

_PR_SET_PDEATHSIG = 1

_OOM_SCORE_ADJUSTMENT = 500
"""Of -1000 to 1000; 500 outweighs half of the memory limit, far more than the guest ever uses."""

_RESOURCES = {
    "memory_mb": (resource.RLIMIT_AS, 1024 * 1024),
    "cpu_s": (resource.RLIMIT_CPU, 1),
    "open_files": (resource.RLIMIT_NOFILE, 1),
    "file_size_mb": (resource.RLIMIT_FSIZE, 1024 * 1024),
}


def apply_limits(limits: Mapping[str, int | None]) -> None:
    """Soft and hard limits, never above the hard limit the process already has: raising one needs privileges."""
    for name, value in limits.items():
        if value is None:
            continue
        which, unit = _RESOURCES[name]
        _, hard = resource.getrlimit(which)
        wanted = value * unit if hard == resource.RLIM_INFINITY else min(value * unit, hard)
        resource.setrlimit(which, (wanted, wanted))


def be_killed_before_the_guest() -> None:
    """When memory runs out, Linux kills the process with the highest score. The guest must not be the one: with it the
    whole sandbox ends. Children inherit the value, and only root can lower it again."""
    with contextlib.suppress(OSError):  # gVisor and odd containers may not have it
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE_ADJUSTMENT))


def die_with_the_guest() -> None:
    """Ask Linux for SIGKILL when the guest ends: a kernel without it can never be reached again."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
