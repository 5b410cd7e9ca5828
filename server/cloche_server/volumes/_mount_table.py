"""What is mounted below one directory, from the text of ``/proc/self/mountinfo``. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_ESCAPE = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the table: where, and from which device."""

    point: Path
    source: str


def parse_mounts(mountinfo: str) -> list[Mount]:
    """In the order of mounting: of two at one point, the later one is seen."""
    return [_mount(line) for line in mountinfo.splitlines() if " - " in line]


def _mount(line: str) -> Mount:
    """proc_pid_mountinfo(5): the mount point is the fifth field, the source the second behind the dash."""
    head, _, tail = line.partition(" - ")
    return Mount(Path(_unescaped(head.split(" ")[4])), _unescaped(tail.split(" ")[1]))


def _unescaped(field: str) -> str:
    """Blanks, tabs, newlines and backslashes are octal."""
    return _ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), field)
