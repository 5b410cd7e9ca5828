"""Find and kill everything a kernel has started, also what left its process group.

A process belongs to a kernel when it is in the kernel's session, descends from it, or carries its mark in the
environment. The last one catches daemons (forked twice, own session). A process that also cleans its environment
escapes; it is still inside the sandbox and ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass

MARK = "CLOCHE_KERNEL"
"""Environment variable that names the kernel: context id and generation."""

_libc = ctypes.CDLL(None, use_errno=False)

_ROUNDS = 10
"""A process may fork between the look and the kill; every round finds what the one before let through."""

DIE_S = 5.0
"""A process that was killed still has to get a processor to end; one that waits for a disk ends later."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What /proc says about one process."""

    pid: int
    parent: int
    session: int
    mark: str | None
    cpu_ticks: int = 0
    """Its own and those of children it has waited for."""


def members(processes: Iterable[ProcessFacts], kernel_pid: int, mark: str) -> set[int]:
    """The processes that belong to the kernel, without the kernel itself. Pure."""
    listed = list(processes)
    found = {kernel_pid}
    size = 0
    while size != len(found):
        size = len(found)
        found |= {p.pid for p in listed if p.parent in found or p.session == kernel_pid or p.mark == mark}
    return found - {kernel_pid, os.getpid(), 1}


def kill_members(kernel_pid: int, mark: str, known: set[int]) -> bool:
    """SIGKILL `known` and whatever is found now, until nothing is left. False: some were killed and have not ended yet."""
    for _ in range(_ROUNDS):
        for pid in known:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        known = members(read_processes(), kernel_pid, mark)
        if not known:
            return True
    return False


async def end_members(kernel_pid: int, mark: str, known: set[int]) -> None:
    """As `kill_members`; returns when all have ended, after `DIE_S` at the latest."""
    end, pause_s = time.monotonic() + DIE_S, 0.002
    while not kill_members(kernel_pid, mark, known):
        if time.monotonic() > end:
            log.warning("processes of %s have not ended %g s after SIGKILL", mark, DIE_S)
            return
        await asyncio.sleep(pause_s)
        known, pause_s = set(), 2 * pause_s


def read_processes() -> list[ProcessFacts]:
    """Every process that can be seen, zombies excluded."""
    facts = (_read_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [fact for fact in facts if fact is not None]


def _read_process(pid: int) -> ProcessFacts | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b") ")[2].split()
        state, parent, _, session = fields[:4]
        cpu_ticks = sum(map(int, fields[11:15]))
    except (OSError, ValueError):
        return None
    if state in (b"Z", b"X"):
        return None
    return ProcessFacts(pid, int(parent), int(session), _read_mark(pid), cpu_ticks)


def _read_mark(pid: int) -> str | None:
    try:
        environ = _read_environ(f"/proc/{pid}/environ")
    except OSError:
        return None
    _, found, rest = (b"\0" + environ).partition(f"\0{MARK}=".encode())
    return rest.partition(b"\0")[0].decode(errors="replace") if found else None


def _read_environ(path: str) -> bytes:
    """Linux shows an environment to whoever may trace the process. On runc the guest has no CAP_SYS_PTRACE, but it may take
    on the owner's file system ids for the moment, which are of this thread alone. gVisor shows it to root as it is."""
    try:
        return _read(path)
    except PermissionError:
        owner = os.stat(path)
    gid = _libc.setfsgid(owner.st_gid)
    uid = _libc.setfsuid(owner.st_uid)
    try:
        return _read(path)
    finally:
        _libc.setfsuid(uid)
        _libc.setfsgid(gid)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
