"""Why a sandbox ended, in the words of the API. Pure."""

from __future__ import annotations

import signal

from cloche.models import Failure
from cloche_server.drivers import ExitReason, SandboxStatus


def failure_of(status: SandboxStatus) -> Failure:
    """Nothing is invented: without a known reason it is ``lost``."""
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


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
