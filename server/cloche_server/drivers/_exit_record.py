"""How a sandbox ended: judged once, kept beside it, so that a later server says the same.

``status_of`` is pure. A kill at the memory limit is a SIGKILL like any other; the cgroup's counter tells it apart.
"""

from __future__ import annotations

import json
import os
import signal

from cloche_server.drivers._base import ExitReason, RunState, SandboxStatus
from cloche_server.drivers._layout import SandboxPaths


def status_of(wait_status: int | None, oom_kills: int, output: str) -> SandboxStatus:
    """``wait_status`` as `os.wait` gives it, None when nobody saw it.

    A runtime that dies of its guest's memory may exit with 128 + 9 instead of by signal: with a kill counted, that is
    out of memory, too. A sandbox that exits in order after some process inside was killed is not.
    """
    if wait_status is None:
        reason = ExitReason.OUT_OF_MEMORY if oom_kills else ExitReason.LOST
        return SandboxStatus(RunState.EXITED, reason, output=output)
    code = os.waitstatus_to_exitcode(wait_status)
    if oom_kills and code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return SandboxStatus(RunState.EXITED, ExitReason.OUT_OF_MEMORY, signal=signal.SIGKILL, output=output)
    if code < 0:
        return SandboxStatus(RunState.EXITED, ExitReason.SIGNAL, signal=-code, output=output)
    return SandboxStatus(RunState.EXITED, ExitReason.EXIT, exit_code=code, output=output)


def explain(status: SandboxStatus) -> str:
    """A few words for people: ``exit 1``, ``signal SIGSEGV``, ``out_of_memory``, ``unknown``."""
    if status.reason is ExitReason.EXIT:
        return f"exit {status.exit_code}"
    if status.reason is ExitReason.SIGNAL and status.signal is not None:
        return f"signal {signal.Signals(status.signal).name}"
    return status.reason or status.state


def save_exit(paths: SandboxPaths, status: SandboxStatus) -> None:
    """Whole or not at all; nothing when the sandbox is being removed."""
    value = {"reason": status.reason, "exit_code": status.exit_code, "signal": status.signal, "output": status.output}
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
    reason = ExitReason(value["reason"])
    return SandboxStatus(RunState.EXITED, reason, value["exit_code"], value["signal"], value["output"])
