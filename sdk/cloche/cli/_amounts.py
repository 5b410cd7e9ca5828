"""Numbers for people: bytes and durations in a few characters. Pure."""

from __future__ import annotations

from typing import Final

from cloche.models import Resources

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_STEP: Final = 1024


def bytes_of(count: float) -> str:
    """``512 B``, ``1.5 MiB``, ``200 MiB``: three digits say enough."""
    unit = 0
    while count >= _STEP and unit < len(_UNITS) - 1:
        count, unit = count / _STEP, unit + 1
    return f"{count:.1f} {_UNITS[unit]}" if unit and count < 10 else f"{count:.0f} {_UNITS[unit]}"


def duration_of(seconds: float) -> str:
    """``45s``, ``12m``, ``3h05m``, ``4d02h``."""
    total = max(0, int(seconds))
    if total < 60:
        return f"{total}s"
    if total < 3600:
        return f"{total // 60}m"
    if total < 86_400:
        return f"{total // 3600}h{total % 3600 // 60:02}m"
    return f"{total // 86_400}d{total % 86_400 // 3600:02}h"


def seconds_of(seconds: float) -> str:
    """``4 ms``, ``0.35 s``: how long something took, of which milliseconds matter while there are few."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def limits_of(limits: Resources) -> str:
    """``2 CPUs, 2048 MiB memory, ...``."""
    return (
        f"{limits.cpus:g} CPUs, {limits.memory_mb} MiB memory, {limits.disk_mb} MiB disk, "
        f"{limits.max_processes} processes"
    )
