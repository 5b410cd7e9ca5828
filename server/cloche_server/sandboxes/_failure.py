"""Why a sandbox ended, in the words of the API. Pure."""

from __future__ import annotations

import signal
from typing import Any, Final, Literal

from cloche.errors import SandboxNotRunning
from cloche.models import Failure, SandboxState
from cloche_server.drivers import ExitReason, SandboxStatus
from cloche_server.state import SandboxRow

ASLEEP: Final = frozenset({SandboxState.PAUSED, SandboxState.SUSPENDED, SandboxState.STOPPED})
"""From these it can be woken."""


def failure_of(status: SandboxStatus) -> Failure:
    """Nothing is invented: without a known reason it is ``lost``."""
    if status.helper and status.reason is not ExitReason.OUT_OF_MEMORY:
        return _failure_of_helper(status)
    match status.reason:
        case ExitReason.OUT_OF_MEMORY:
            return Failure(
                reason="out_of_memory",
                message="the sandbox used up its memory limit and the kernel ended it",
                signal=_signal_name(status.signal),
            )
        case ExitReason.SIGNAL:
            name = _signal_name(status.signal)
            return Failure(reason="signal", message=f"the sandbox was ended by {name}", signal=name)
        case ExitReason.EXIT:
            code = status.exit_code
            return Failure(reason="exit", message=f"the sandbox' first process exited with {code}", exit_code=code)
        case _:
            return Failure(reason="lost", message="the sandbox is gone, and nothing recorded how it ended")


def _failure_of_helper(status: SandboxStatus) -> Failure:
    """The sandbox may have gone on for a while, but nothing of the host could be opened for it any more."""
    code, name = status.exit_code, _signal_name(status.signal)
    end = "was killed" if name else "is gone" if code is None else f"exited with {code}"
    reason: Literal["signal", "exit", "lost"] = "signal" if name else "lost" if code is None else "exit"
    message = f"the {status.helper} of the sandbox' runtime {end}, and a sandbox cannot run without it"
    return Failure(reason=reason, message=message, exit_code=code, signal=name)


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def not_running(row: SandboxRow) -> SandboxNotRunning:
    """What it is instead, why, and what to do."""
    details: dict[str, Any] = {"state": row.state.value, "sandbox_id": row.id}
    if row.failure is not None:
        details["failure"] = row.failure.model_dump()
    why = f": {row.failure.message}" if row.failure else ""
    hint = "resume it first; looking does not wake a sandbox" if row.state in ASLEEP else None
    return SandboxNotRunning(f"sandbox {row.id} is {row.state.value}{why}", hint=hint, details=details)
