"""Starting a program: its command line, its descriptors, and why it could not be started."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from cloche.errors import LimitReached, ProcessStartFailed
from cloche.models import Tty
from cloche_guest.children import Account, Child, Children
from cloche_guest.window_size import set_window_size

PIPE_BYTES: Final = 256 * 1024
"""Four times Linux' default: a program that writes in bursts waits less often for the guest."""

END_OF_TRANSMISSION: Final = b"\x04"
"""What Ctrl-D types: a terminal has no other end of input."""

_REASONS: Final[Mapping[int, str]] = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.EACCES: "not_executable",
    errno.ENOEXEC: "not_executable",
    errno.EISDIR: "not_executable",
    errno.E2BIG: "too_large",
    errno.ENAMETOOLONG: "not_found",
    errno.ELOOP: "not_found",
}


@dataclass(frozen=True, slots=True)
class Order:
    """What to start, complete."""

    argv: list[str]
    cwd: str
    env: Mapping[str, str]
    account: Account | None
    tty: Tty | None = None
    stdin_open: bool = False


@dataclass(slots=True)
class Launched:
    """A program that runs, and our ends of its descriptors; whoever gets it closes them."""

    child: Child
    outputs: list[tuple[str, int]] = field(default_factory=list)
    stdin: int | None = None
    end_mark: bytes = b""


def launch(children: Children, order: Order) -> Launched:
    """
    Raises:
        ProcessStartFailed: the program or the directory cannot be used; ``details`` say which and why.
        LimitReached: the sandbox has no processes or descriptors left.
    """
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
        try:
            launched = (_launch_on_tty if order.tty else _launch_on_pipes)(children, order, theirs, ours)
        except (OSError, ValueError) as error:
            raise _refused(error, order) from error
        ours.pop_all()
        return launched


def _launch_on_pipes(
    children: Children, order: Order, theirs: contextlib.ExitStack, ours: contextlib.ExitStack
) -> Launched:
    out, out_end = _pipe(theirs, ours)
    err, err_end = _pipe(theirs, ours)
    stdin, stdin_end = None, _null(theirs)
    if order.stdin_open:
        stdin_end, stdin = os.pipe()
        theirs.callback(os.close, stdin_end)
        ours.callback(os.close, stdin)
    child = children.spawn(
        order.argv,
        cwd=order.cwd,
        env=order.env,
        account=order.account,
        stdin=stdin_end,
        stdout=out_end,
        stderr=err_end,
    )
    return Launched(child, [("stdout", out), ("stderr", err)], stdin)


def _launch_on_tty(
    children: Children, order: Order, theirs: contextlib.ExitStack, ours: contextlib.ExitStack
) -> Launched:
    """Input at its end means that stdin is not the terminal; the program still sees one for its output."""
    assert order.tty is not None
    master, slave = os.openpty()
    ours.callback(os.close, master)
    theirs.callback(os.close, slave)
    set_window_size(slave, rows=order.tty.rows, cols=order.tty.cols)
    if order.account is not None:
        os.fchown(slave, order.account.uid, order.account.gid)
    stdin = None
    if order.stdin_open:
        stdin = os.dup(master)
        ours.callback(os.close, stdin)
    child = children.spawn(
        order.argv,
        cwd=order.cwd,
        env=order.env,
        account=order.account,
        stdin=slave if order.stdin_open else _null(theirs),
        stdout=slave,
        stderr=slave,
        controlling_terminal=order.stdin_open,
    )
    return Launched(child, [("stdout", master)], stdin, END_OF_TRANSMISSION)


def _pipe(theirs: contextlib.ExitStack, ours: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    with contextlib.suppress(OSError):  # over the user's share of pipe memory: the default does, too
        fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read, write


def _null(theirs: contextlib.ExitStack) -> int:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    theirs.callback(os.close, descriptor)
    return descriptor


def _refused(error: OSError | ValueError, order: Order) -> ProcessStartFailed | LimitReached:
    if isinstance(error, OSError) and error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return LimitReached(
            f"{order.argv[0]} cannot be started: {error.strerror}; the sandbox has reached a limit",
            hint="end some processes",
            details={"limit": "processes" if error.errno == errno.EAGAIN else "memory or descriptors"},
        )
    is_cwd = isinstance(error, OSError) and error.filename == order.cwd
    if isinstance(error, OSError) and is_cwd and (order.argv[0] != order.cwd or not _is_directory(order.cwd)):
        return _failed("bad_cwd", "cwd", order.cwd, f"{order.cwd}: {error.strerror}")
    problem = error.strerror if isinstance(error, OSError) else str(error)
    number = error.errno if isinstance(error, OSError) else None
    reason = _REASONS.get(number or 0, "other")
    if reason == "not_found" and _is_there(order):
        problem, reason = "the interpreter in its first line was not found", "bad_interpreter"
    return _failed(reason, "argv", order.argv[0], f"{order.argv[0]}: {problem}")


def _failed(reason: str, field_name: str, path: str, problem: str) -> ProcessStartFailed:
    details: dict[str, JsonValue] = {"reason": reason, "field": field_name, "path": path[:1024]}
    return ProcessStartFailed(f"the process was not started: {problem[:2048]}", details=details)


def not_allowed() -> ProcessStartFailed:
    return _failed(
        "not_allowed", "user", "root", "this sandbox was created without sudo, so nothing runs as root in it"
    )


def _is_directory(path: str) -> bool:
    try:
        return os.path.isdir(path)
    except ValueError:
        return False


def _is_there(order: Order) -> bool:
    """A program that exists and still is not found has an interpreter that does not."""
    return shutil.which(order.argv[0], path=order.env.get("PATH", os.defpath)) is not None
