"""Child processes: one place starts them and one place collects them.

Exactly one owner may wait for a child: whoever waits second gets ECHILD and must invent a status. So everything the
guest starts is started here, and SIGCHLD is handled here. The guest also inherits every orphan of the sandbox and
collects those too; without `collect_orphans` children it did not start (of a test runner, say) are left alone.

Why SIGCHLD and not pidfds: it is as immediate, one `waitid` answers for all, and gVisor has no `pidfd_open`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cloche_guest.credentials import being, can_be_another

_PR_SET_CHILD_SUBREAPER: Final = 36
_libc = ctypes.CDLL(None, use_errno=True)

TOLD_S: Final = 5.0
"""For the parent of a process that was killed to tell that it has ended, which takes some milliseconds."""


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the sandbox."""

    uid: int
    gid: int
    home: str
    name: str


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended: by `code` or by `signal`, never both."""

    code: int | None = None
    signal: int | None = None


class Child:
    """One process, leader of its own session and group. `exited` gets its status, once.

    `parent` is the child of ours that has started it, when we have not.
    """

    def __init__(
        self,
        pid: int,
        exited: asyncio.Future[ExitStatus],
        popen: subprocess.Popen[bytes] | None = None,
        parent: Child | None = None,
    ) -> None:
        self.pid = pid
        self.exited = exited
        self._popen = popen
        self._parent = parent

    def signal_group(self, number: int) -> None:
        """Signal the process and the members of its group; nothing happens when it has ended.

        The id cannot name a stranger: it stays taken until the child was collected, and then `exited` is done.
        """
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                self._signal(number)

    async def kill(self) -> None:
        """SIGKILL to the group; returns when the process has ended. A parent that does not tell of it within `TOLD_S` (the
        user's code may have stopped it) is ended as well, and its children become ours."""
        self.signal_group(signal.SIGKILL)
        if self._parent is not None and not await self._ends_within(TOLD_S):
            await self._parent.kill()
            if not await self._ends_within(TOLD_S):  # the parent took its status and kept it
                self._end(ExitStatus(signal=signal.SIGKILL))
        await asyncio.shield(self.exited)

    async def _ends_within(self, bound_s: float) -> bool:
        await asyncio.wait((self.exited,), timeout=bound_s)
        return self.exited.done()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:  # one that was forked makes its group a moment later
            os.kill(self.pid, number)

    def _end(self, status: ExitStatus) -> None:
        self._disown()
        if not self.exited.done():
            self.exited.set_result(status)

    def _disown(self) -> None:
        """Popen waits by itself for a child without a return code when it is freed; that would be a second owner."""
        if self._popen is not None:
            self._popen.returncode = 0


class Children:
    """Starts and collects processes; belongs to the loop that calls `watch`, in the main thread."""

    def __init__(self, *, collect_orphans: bool) -> None:
        self._collect_orphans = collect_orphans
        self._children: dict[int, Child] = {}

    def watch(self) -> None:
        """Collect from now on."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.collect)
        self.collect()

    def unwatch(self) -> None:
        """Stop collecting."""
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)

    def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        account: Account | None,
        stdout: int,
        stderr: int,
        stdin: int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        controlling_terminal: bool = False,
    ) -> Child:
        """Start a program in a session of its own; its stdin is at its end unless one is given.

        ``controlling_terminal``: stdin is a terminal, and becomes the one that Ctrl-C and hang-ups come from.

        Raises:
            OSError: the program or `cwd` cannot be used; `filename` says which.
        """
        ids = account if account is None or account.uid == 0 or not can_be_another() else None
        with _being(account) if ids is not account else contextlib.nullcontext():
            popen = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=dict(env),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=pass_fds,
                start_new_session=True,
                user=ids.uid if ids else None,
                group=ids.gid if ids else None,
                extra_groups=groups_of(ids) if ids else None,
                preexec_fn=_take_terminal if controlling_terminal else None,  # noqa: PLW1509 - see there
            )
        child = Child(popen.pid, asyncio.get_running_loop().create_future(), popen)
        self._children[child.pid] = child
        return child

    def adopt(self, pid: int, parent: Child) -> Child:
        """A process that `parent` has started. Its exit is told by `note_exit`; or it becomes our own child when its
        parent dies, and is collected like the others."""
        child = self._children[pid] = Child(pid, asyncio.get_running_loop().create_future(), parent=parent)
        return child

    def note_exit(self, pid: int, status: ExitStatus) -> None:
        """The parent of an adopted process says how it ended."""
        child = self._children.pop(pid, None)
        if child is not None:
            child._end(status)

    def give_up(self, child: Child) -> None:
        """Its status was taken by somebody else and will never come; its number may be another's by now."""
        self._children.pop(child.pid, None)
        child._disown()

    def collect(self) -> None:
        """Take the status of every child that has ended; SIGCHLD is not queued, so one signal may stand for many."""
        if self._collect_orphans:
            while (result := _wait(os.P_ALL, 0)) is not None:
                self._take(result)
            return
        for pid in list(self._children):
            result = _wait(os.P_PID, pid)
            if result is not None:
                self._take(result)

    def _take(self, result: os.waitid_result) -> None:
        child = self._children.pop(result.si_pid, None)
        if child is not None:
            child._end(_status(result))


def be_reaper() -> bool:
    """Orphans of our descendants become our children, as they do of PID 1. False where the kernel cannot (gVisor)."""
    return os.getpid() == 1 or _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def _being(account: Account | None) -> contextlib.AbstractContextManager[None]:
    assert account is not None
    return being(account.uid, account.gid, groups_of(account))


def _take_terminal() -> None:
    """Runs in the child between fork and exec, where other threads' locks may be held for ever: one system call only."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _wait(kind: int, pid: int) -> os.waitid_result | None:
    try:
        return os.waitid(kind, pid, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return None


def _status(result: os.waitid_result) -> ExitStatus:
    if result.si_code == os.CLD_EXITED:
        return ExitStatus(code=result.si_status)
    return ExitStatus(signal=result.si_status)


def groups_of(account: Account) -> list[int]:
    """Of its user, all of them."""
    try:
        return os.getgrouplist(account.name, account.gid)
    except OSError:
        return [account.gid]
