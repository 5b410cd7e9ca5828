"""The memory guard: an out-of-memory killer inside gVisor.

Where a sandbox' memory is that of one host process (the Sentry), the host's killer can only end the whole sandbox, with
all its contexts. The guard looks at what is left and kills the largest process before that happens, as Linux would.
The driver asks for it with ``CLOCHE_MEMORY_GUARD=1``; under runc the kernel does this itself.

It is a thread: a busy event loop must not delay it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

MEBIBYTE: Final = 1024 * 1024

FILL_RATE: Final = 4 * 1024 * MEBIBYTE
"""Bytes a second that programs may claim at the very most; measured: 1.6 GiB/s with two cores. Decides when to look."""

SHORTEST_S: Final = 0.004
LONGEST_S: Final = 0.25

QUIET_RATE: Final = 2 * 1024 * MEBIBYTE
QUIET_LONGEST_S: Final = 0.5
QUIET_LOOKS: Final = 20
"""After so many looks at the same memory nothing seems to run. Then a look comes later: still before a program that begins
to claim memory at full speed, at what was measured and a quarter more, has used up what is above the reserve. Every
look wakes an idle sandbox."""

RECOVERY_S: Final = 1.0
"""How long a killed process may take to give its memory back before the next one is killed."""

_MEMINFO: Final = Path("/proc/meminfo")
_LINES: Final = re.compile(r"^(MemTotal|MemAvailable): +(\d+) kB$", re.MULTILINE)
_kills = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, as /proc/meminfo has them."""

    total: int
    available: int

    @property
    def reserve(self) -> int:
        """Below this much available memory the largest process is killed: a tenth, from 48 to 256 MiB."""
        return min(max(self.total // 10, 48 * MEBIBYTE), 256 * MEBIBYTE)

    @property
    def is_short(self) -> bool:
        return self.available < self.reserve

    @property
    def pause_s(self) -> float:
        """No program can use up what is above the reserve in half of this time."""
        return min(max((self.available - self.reserve) / FILL_RATE / 2, SHORTEST_S), LONGEST_S)

    @property
    def quiet_pause_s(self) -> float:
        """The same where nothing seems to run."""
        return min(max((self.available - self.reserve) / QUIET_RATE, self.pause_s), QUIET_LONGEST_S)


class Quiet:
    """Whether memory has stayed as it was. Pure."""

    def __init__(self) -> None:
        self._available = -1
        self._looks = 0

    def look(self, memory: Memory) -> bool:
        """With every look; True after `QUIET_LOOKS` of the same, give or take a MiB."""
        if abs(memory.available - self._available) <= MEBIBYTE:
            self._looks += 1
        else:
            self._available, self._looks = memory.available, 0
        return self._looks >= QUIET_LOOKS


def parse_memory(meminfo: str) -> Memory:
    """`ValueError` when a line is missing."""
    found = dict(_LINES.findall(meminfo))
    if len(found) != 2:
        raise ValueError("no MemTotal and MemAvailable in /proc/meminfo")
    return Memory(int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024)


def count_kills() -> int:
    """Processes the guard has killed."""
    return _kills


OnKill = Callable[[int, int], None]
"""Called with pid and resident bytes of what is being killed, in the guard's thread."""


def start_memory_guard(on_kill: OnKill) -> None:
    """For the rest of the guest's life."""
    threading.Thread(target=_guard, args=(on_kill,), name="memory guard", daemon=True).start()


def _guard(on_kill: OnKill) -> None:
    pause, quiet = threading.Event(), Quiet()
    while True:
        memory = parse_memory(_MEMINFO.read_text())
        is_quiet = quiet.look(memory)
        if memory.is_short and _kill_largest(on_kill):
            _await_recovery(pause)
        else:
            pause.wait(memory.quiet_pause_s if is_quiet else memory.pause_s)


def _await_recovery(pause: threading.Event) -> None:
    for _ in range(int(RECOVERY_S / SHORTEST_S)):
        if not parse_memory(_MEMINFO.read_text()).is_short:
            return
        pause.wait(SHORTEST_S)


def _kill_largest(on_kill: OnKill) -> bool:
    """False when there is nothing to kill. Counted first, so that whoever sees the death finds the reason."""
    global _kills  # noqa: PLW0603 (one guard in a process, as one /proc/meminfo)
    size, pid = max(_resident_bytes(), default=(0, 0))
    if pid == 0:
        return False
    _kills += 1
    log.warning("out of memory: killing process %d of %d MiB", pid, size // MEBIBYTE)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    on_kill(pid, size)
    return True


def _resident_bytes() -> Iterator[tuple[int, int]]:
    """Size and pid of every process but PID 1 and this one."""
    page = os.sysconf("SC_PAGESIZE")
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            with contextlib.suppress(OSError, ValueError, IndexError):
                yield int(Path(f"/proc/{name}/statm").read_text().split()[1]) * page, int(name)
