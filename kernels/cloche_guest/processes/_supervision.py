"""When is a process over, and what to do until then. Pure: facts and a time in, one decision out.

Rules
-----
* A process is finished when its root has exited **and** its output is at its end **and** its group has no member left.
* Members of the group that outlive the root keep it *lingering*, for as long as they live: a server started with ``&`` is
  a part of what was started.
* A descendant that has left the group (a daemon) and still holds the output keeps it for `HELD_S` only; then the process
  is finished and says so.
* ``timeout_s`` is about the root. When it is over the tree gets TERM, then after the grace KILL. A root that has exited in
  time is not punished for what it left running.
* A signal with a deadline (`kill_at`) ends in KILL for what is left of the tree.
* Nobody guesses: a root that is gone without a status is `Step.LOSE`.

| facts | decision |
|---|---|
| root gone, no status | Lose |
| exited, drained, group empty | Finish |
| exited, group empty, output held for HELD_S | Finish (held) |
| `kill_at` reached, not yet killed | Kill |
| running, time over, not yet told | Terminate |
| exited, LINGER_S passed, not yet said | Linger |
| else | Wait until the next of these times |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

LINGER_S: Final = 0.25
"""After this much time behind the root's exit a process is said to linger, and an exec answers. Pipelines and process
substitutions end within milliseconds of their shell."""

HELD_S: Final = 2.0
TTY_HELD_S: Final = 0.1
"""A terminal has no writer left when its group is empty, but gVisor does not say so."""

FIRST_POLL_S: Final = 0.002
LONGEST_POLL_S: Final = 0.25
"""Nothing tells that a group became empty: it is looked at, less often with time. A look is one system call."""


class Step(Enum):
    """What to do now."""

    WAIT = "wait"
    TERMINATE = "terminate"
    KILL = "kill"
    LINGER = "linger"
    FINISH = "finish"
    LOSE = "lose"


@dataclass(frozen=True, slots=True)
class Facts:
    """About one process. Times are seconds of one monotonic clock."""

    started_at: float
    timeout_s: float | None = None
    held_s: float = HELD_S
    exited_at: float | None = None
    root_gone: bool = False
    drained: bool = False
    group_empty_at: float | None = None
    terminated: bool = False
    kill_at: float | None = None
    killed: bool = False
    lingered: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """`until`: look again at this time if nothing happens before; None: there is no such time. `held`: see the rules."""

    step: Step
    until: float | None = None
    held: bool = False


def decide(facts: Facts, now: float) -> Decision:
    """The one thing to do now; after doing it the facts are others and `decide` is asked again."""
    if facts.root_gone and facts.exited_at is None:
        return Decision(Step.LOSE)
    if facts.exited_at is not None and facts.group_empty_at is not None:
        if facts.drained:
            return Decision(Step.FINISH)
        if now >= facts.group_empty_at + facts.held_s:
            return Decision(Step.FINISH, held=True)
    times = _times(facts)
    due = [step for step, at in times if step is not Step.WAIT and now >= at]
    if due:
        return Decision(due[0])
    return Decision(Step.WAIT, until=min((at for _, at in times), default=None))


def _times(facts: Facts) -> list[tuple[Step, float]]:
    """Steps and when they are due, the most pressing first. WAIT: only a time to look again."""
    times: list[tuple[Step, float]] = []
    if facts.kill_at is not None and not facts.killed:
        times.append((Step.KILL, facts.kill_at))
    if facts.exited_at is None:
        if facts.timeout_s is not None and not facts.terminated:
            times.append((Step.TERMINATE, facts.started_at + facts.timeout_s))
        return times
    if not facts.lingered:
        times.append((Step.LINGER, facts.exited_at + LINGER_S))
    if facts.group_empty_at is not None:
        times.append((Step.WAIT, facts.group_empty_at + facts.held_s))
    return times


def poll_pause_s(exited_for_s: float) -> float:
    """Until the next look at the group of a process whose root exited so long ago."""
    return min(max(exited_for_s / 4, FIRST_POLL_S), LONGEST_POLL_S)
