"""How a sandbox ended: judged once, kept beside it, so that a later server says the same.

``status_of`` is pure. A kill at the memory limit is a SIGKILL like any other; the cgroup's counter tells it apart.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict

from cloche_server.drivers._base import ExitReason, RunState, SandboxStatus
from cloche_server.drivers._layout import SandboxPaths


def status_of(wait_status: int | None, oom_kills: int, output: str, helper: str = "") -> SandboxStatus:
    """``wait_status`` as `os.wait` gives it, None when nobody saw it; of the runtime's ``helper`` when one is named.

    A runtime that dies of its guest's memory may exit with 128 + 9 instead of by signal: with a kill counted, that is
    out of memory, too. A sandbox that exits in order after some process inside was killed is not.
    """
    reason, exit_code, number = _judge(wait_status, oom_kills)
    return SandboxStatus(RunState.EXITED, reason, exit_code, number, output, helper)


def _judge(wait_status: int | None, oom_kills: int) -> tuple[ExitReason, int | None, int | None]:
    """The reason, the exit code, the number of the signal."""
    if wait_status is None:
        return (ExitReason.OUT_OF_MEMORY if oom_kills else ExitReason.LOST), None, None
    code = os.waitstatus_to_exitcode(wait_status)
    if oom_kills and code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return ExitReason.OUT_OF_MEMORY, None, signal.SIGKILL
    if code < 0:
        return ExitReason.SIGNAL, None, -code
    return ExitReason.EXIT, code, None


def explain(status: SandboxStatus) -> str:
    """A few words for people: ``exit 1``, ``signal SIGSEGV``, ``out_of_memory``, ``unknown``, and of what, when it was a
    helper of the runtime."""
    return f"{_explain(status)} of its runtime's {status.helper}" if status.helper else _explain(status)


def _explain(status: SandboxStatus) -> str:
    if status.reason is ExitReason.EXIT:
        return f"exit {status.exit_code}"
    if status.reason is ExitReason.SIGNAL and status.signal is not None:
        return f"signal {signal.Signals(status.signal).name}"
    return status.reason or status.state


def save_exit(paths: SandboxPaths, status: SandboxStatus) -> None:
    """Whole or not at all; nothing when the sandbox is being removed."""
    value = asdict(status)
    partial = paths.exit.with_suffix(".part")
    try:
        partial.write_text(json.dumps(value))
        partial.rename(paths.exit)
    except FileNotFoundError:
        return


def load_exit(paths: SandboxPaths) -> SandboxStatus | None:
    """None while none is recorded."""
    try:
        value = json.loads(paths.exit.read_text())
    except FileNotFoundError:
        return None
    return SandboxStatus(**value | {"state": RunState.EXITED, "reason": ExitReason(value["reason"])})
