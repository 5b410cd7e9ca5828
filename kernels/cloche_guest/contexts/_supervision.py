"""When is a run over, and what to do until then. Pure: facts and a time in, one decision out.

Rules
-----
* A run is over when its ``execute_reply`` **and** the ``idle`` status with its id are there. Either may be lost: the
  reply when an interrupt hits between the code's end and the reply, the idle when a foreign kernel's socket
  overflows. So when one of the two is there and the other does not follow within `HALF_WAIT_S`, the kernel gets a
  question on shell. Shell answers in order: once that answer is there, nothing of the run can follow. The answer
  itself is waited for `PROBE_WAIT_S`.
* A run that was asked to stop, or whose time is over, gets SIGINT and a question on shell, which wakes a kernel whose
  event loop sleeps. After half of the grace time it gets a second SIGINT: Python loses a KeyboardInterrupt that is
  raised in a callback (around a fork, in a destructor). If it is not over within the grace time, its kernel is killed.
* The signal is held back until the kernel has said that it begins: before that it ignores signals, and the interrupt
  would be lost. A kernel that does not say so within `BEGIN_WAIT_S` gets it anyway.
* A dead kernel ends the run at once.

| facts | decision |
|---|---|
| kernel dead | Finish |
| reply and idle, or one of them and the probe answered or overdue | Finish |
| asked to stop or time over, begun, not yet interrupted | Interrupt |
| interrupted once, half of the grace over | Interrupt |
| interrupted, grace over | Kill |
| one of the two for HALF_WAIT_S | Probe |
| else | Wait until the next of these times |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

HALF_WAIT_S = 0.25
"""Reply and idle leave the kernel within a millisecond of each other; a loaded gVisor needs some 50 ms."""

PROBE_WAIT_S = 5.0

BEGIN_WAIT_S = 1.0
"""A kernel begins a run within a millisecond or two."""

StopReason = Literal["interrupted", "timeout"]


class Step(Enum):
    """What to do now."""

    WAIT = "wait"
    INTERRUPT = "interrupt"
    PROBE = "probe"
    KILL = "kill"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Watch:
    """Facts about one running run. Times are seconds of one monotonic clock."""

    started_at: float
    timeout_s: float
    grace_s: float
    begun: bool = False
    replied_at: float | None = None
    idle_at: float | None = None
    stop_asked: bool = False
    interrupted_at: float | None = None
    interrupts: int = 0
    probed_at: float | None = None
    probe_answered: bool = False
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """`until`: look again at this time, if nothing happens before. `reason`: of the first interrupt."""

    step: Step
    until: float = 0.0
    reason: StopReason | None = None


def decide(watch: Watch, now: float) -> Decision:
    """The one thing to do now; after doing it the facts are others and `decide` is asked again."""
    if watch.dead or _is_over(watch, now):
        return Decision(Step.FINISH)
    stop = _stop(watch, now)
    if stop is not None and watch.interrupted_at is None and not _is_half(watch):
        may_at = watch.started_at + BEGIN_WAIT_S
        if watch.begun or now >= may_at:
            return Decision(Step.INTERRUPT, reason=stop)
        return Decision(Step.WAIT, until=may_at)
    times = _times(watch)
    due = [step for step, at in times.items() if step is not Step.WAIT and now >= at]
    if due:
        return Decision(due[0])
    return Decision(Step.WAIT, until=min(times.values()))


def _stop(watch: Watch, now: float) -> StopReason | None:
    if watch.stop_asked:
        return "interrupted"
    return "timeout" if now >= watch.started_at + watch.timeout_s else None


def _is_half(watch: Watch) -> bool:
    return watch.replied_at is not None or watch.idle_at is not None


def _is_over(watch: Watch, now: float) -> bool:
    if watch.replied_at is not None and watch.idle_at is not None:
        return True
    if not _is_half(watch) or watch.probed_at is None:
        return False
    return watch.probe_answered or now >= watch.probed_at + PROBE_WAIT_S


def _times(watch: Watch) -> dict[Step, float]:
    """Step -> when it is due. WAIT: only a time to look again."""
    if _is_half(watch):
        first = min(at for at in (watch.replied_at, watch.idle_at) if at is not None)
        if watch.probed_at is None:
            return {Step.PROBE: first + HALF_WAIT_S}
        return {Step.WAIT: watch.probed_at + PROBE_WAIT_S}
    if watch.interrupted_at is not None and watch.interrupts == 1:
        return {Step.INTERRUPT: watch.interrupted_at + watch.grace_s / 2}
    if watch.interrupted_at is not None:
        return {Step.KILL: watch.interrupted_at + watch.grace_s}
    return {Step.WAIT: watch.started_at + watch.timeout_s}
