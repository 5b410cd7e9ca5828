"""Which process holds a socket: ``/proc/PID/fd`` has it as ``socket:[inode]``.

Root without CAP_SYS_PTRACE may not read that of other users (runc; gVisor is not so strict). So each process is looked at
with its own user's rights: the file system ids of this *thread* become those of the process for the look. Call it in a
thread that does nothing else.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from typing import Final

from cloche.models.ports import PortHolder

BOUND_S: Final = 2.0
"""Of processor time for one search: a sandbox may be full of processes with thousands of descriptors. What is not found by
then has no name. On a machine that is busy with much else the same search takes longer, and finds the same."""

MAX_COMMAND: Final = 1000

_SOCKET = re.compile(r"socket:\[([0-9]+)\]")
_libc = ctypes.CDLL(None)


def find_holders(inodes: Set[int]) -> dict[int, PortHolder]:
    """Inode -> the process with the lowest id that has it."""
    missing = set(inodes)
    found: dict[int, PortHolder] = {}
    end = time.thread_time() + BOUND_S
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if not missing or time.thread_time() > end:
            break
        held = missing & set(sockets_of(pid))
        if held:
            found |= dict.fromkeys(held, PortHolder(pid=pid, command=_command(pid)))
            missing -= held
    return found


def sockets_of(pid: int) -> list[int]:
    """Inodes of the sockets a process has open; none when it has ended."""
    directory = f"/proc/{pid}/fd"
    found = []
    try:
        status = os.stat(f"/proc/{pid}")
        with _file_system_ids(status.st_uid, status.st_gid):
            for name in os.listdir(directory):
                match = _SOCKET.fullmatch(_link(f"{directory}/{name}"))
                if match is not None:
                    found.append(int(match[1]))
    except OSError:
        return found
    return found


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


@contextmanager
def _file_system_ids(uid: int, gid: int) -> Iterator[None]:
    """Nothing to change, and no right to, unless this is root."""
    if os.geteuid() != 0 or uid == 0:
        yield
        return
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)
    try:
        yield
    finally:
        _libc.setfsuid(0)
        _libc.setfsgid(0)


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(4 * MAX_COMMAND)
    except OSError:
        return ""
    words = raw.rstrip(b"\0").decode(errors="replace").split("\0")
    return shlex.join(words)[:MAX_COMMAND]
