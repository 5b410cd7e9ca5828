"""The machine a measurement was made on: what a reader needs to judge the numbers, and no name of it."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine_facts() -> dict[str, str]:
    """CPU, memory, system and how busy it was at the start."""
    return {
        "cpus": str(len(os.sched_getaffinity(0))),
        "cpu": _field(Path("/proc/cpuinfo"), "model name"),
        "memory": f"{int(_field(Path('/proc/meminfo'), 'MemTotal').split()[0]) // 1024} MiB",
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "unknown"),
        "python": platform.python_version(),
        "load_at_start": f"{os.getloadavg()[0]:.2f}",
    }


def _field(path: Path, name: str) -> str:
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "unknown"
