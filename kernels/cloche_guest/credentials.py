"""Be another user for a moment, in this thread alone.

Credentials belong to threads on Linux (and on gVisor); it is libc that keeps those of a process alike, so the system calls
are made directly. Meanwhile the saved ids stay root's, which is the way back. A program that is started then has only the
user's: exec overwrites the saved ids with the effective ones, and takes the capabilities.

Why: `subprocess` starts a program by vfork, unless it shall change the user between fork and exec. A fork copies the page
tables of the guest, and each page it touches afterwards: 7 ms on runc, 20 to 50 ms on gVisor, for every start.

Between vfork and exec the child shares the guest's memory while it has the user's ids. Nobody of that user can trace it: a
change of ids makes the memory undumpable (and `prctl` does, where a host's fs.suid_dumpable says otherwise). Its signals can
reach it, and a SIGSTOP there stops the guest; so it does between the setuid and the exec of an ordinary fork, whose parent
waits as well.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

_NUMBERS: Final = {"x86_64": (117, 119, 116), "aarch64": (147, 149, 159)}.get(os.uname().machine)
"""Of setresuid, setresgid and setgroups."""

_PR_SET_DUMPABLE: Final = 4
_libc = ctypes.CDLL(None, use_errno=True)


def can_be_another() -> bool:
    """This machine's system calls are known, and we are root."""
    return _NUMBERS is not None and os.geteuid() == 0


@contextmanager
def being(uid: int, gid: int, groups: Sequence[int]) -> Iterator[None]:
    """In here this thread is that user.

    Raises:
        OSError: it cannot be; then it is as before.
    """
    own_gid, own_groups = os.getegid(), os.getgroups()
    try:
        _set_groups(groups)
        _set_ids(1, gid, gid, own_gid)
        _set_ids(0, uid, uid, 0)
        _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
        yield
    finally:
        _set_ids(0, 0, 0, 0)
        _set_ids(1, own_gid, own_gid, own_gid)
        _set_groups(own_groups)


def _set_ids(which: int, real: int, effective: int, saved: int) -> None:
    assert _NUMBERS is not None
    _check(_libc.syscall(_NUMBERS[which], real, effective, saved))


def _set_groups(groups: Sequence[int]) -> None:
    assert _NUMBERS is not None
    _check(_libc.syscall(_NUMBERS[2], len(groups), (ctypes.c_uint32 * len(groups))(*groups)))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
