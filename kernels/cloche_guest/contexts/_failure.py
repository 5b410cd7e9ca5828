"""Why a kernel ended, in words. Pure, but for `read_oom_kills`."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Literal

from cloche.models import Failure
from cloche_guest.children import ExitStatus
from cloche_guest.memory_guard import count_kills

_COUNTER = Path("/run/cloche-memory-events")
"""The sandbox' memory.events (cgroup v2) or memory.oom_control (v1), where the driver shows it."""

_LOG_LINES = 8

OurReason = Literal["interrupted", "timeout", "restarted", "deleted"]

_OURS: dict[OurReason, str] = {
    "interrupted": "the run did not stop when it was interrupted, so its kernel was replaced",
    "timeout": "the run did not stop when its time was over, so its kernel was replaced",
    "restarted": "the context was restarted",
    "deleted": "the context was deleted",
}


def explain_exit(status: ExitStatus, *, oom_kills: int, log_tail: str) -> Failure:
    """For a kernel that ended by itself. `oom_kills`: how many the cgroup counted during its life."""
    if status.signal is None:
        message = f"the kernel ended with exit code {status.code}"
        return Failure(reason="exit", message=_with_log(message, log_tail), exit_code=status.code)
    name = signal_name(status.signal)
    if status.signal == signal.SIGKILL and oom_kills > 0:
        message = "the kernel was killed because the sandbox ran out of memory"
        return Failure(reason="out_of_memory", message=message, signal=name)
    message = f"the kernel was ended by {name}"
    if status.signal == signal.SIGKILL:
        message += "; nobody here sent it: running out of memory is the usual cause"
    return Failure(reason="signal", message=_with_log(message, log_tail), signal=name)


def explain_ours(reason: OurReason) -> Failure:
    """For a kernel that was ended on purpose."""
    return Failure(reason=reason, message=_OURS[reason])


def explain_start(what: str, log_tail: str) -> Failure:
    """For a kernel that never answered."""
    return Failure(reason="start_failed", message=_with_log(f"the kernel did not start: {what}", log_tail))


def signal_name(number: int) -> str:
    """``SIGSEGV``; real-time signals have no names of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def read_oom_kills() -> int:
    """Processes killed for want of memory in this sandbox, by the kernel (where its counter is shown) or the guard."""
    return count_kills() + read_cgroup_kills()


def read_cgroup_kills() -> int:
    """Those by the kernel; 0 where the counter is not shown."""
    try:
        match = re.search(r"^oom_kill (\d+)$", _COUNTER.read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) if match else 0


def _with_log(message: str, log_tail: str) -> str:
    """A crash dump is worth its first lines (where it happened), any other log its last ones."""
    start = log_tail.find("Fatal Python error")
    lines = log_tail[max(start, 0) :].splitlines()
    lines = lines[:_LOG_LINES] if start >= 0 else lines[-_LOG_LINES:]
    return message + ". Its last words: " + "\n".join(lines) if lines else message
