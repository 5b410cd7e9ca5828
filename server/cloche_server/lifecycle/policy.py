"""When a sandbox is put to rest or deleted by itself. Pure: a row, the time, and what its guest said.

- Idle: no call went into it and no work was seen in it for ``idle_timeout_s``. At that moment, and only then, its guest is
  asked (`Ask`): what works counts from now, what ended counts from its end. A sandbox that is paused cannot work.
- Over: ``max_lifetime_s`` since it was born, whatever it does. One that rests by then is only ever deleted.
- Rested: ``delete_after_s`` since it was suspended or stopped.
- One that waits in a pool is the pool's business; its life begins when it is handed out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

from cloche.models import LifecyclePolicy, PolicyAction, SandboxState

SECOND_US: Final = 1_000_000

FIRST_RETRY_S: Final = 5.0
LONGEST_RETRY_S: Final = 300.0
"""After a failure: a full disk is not emptied in a second, and nobody waits for a policy."""

Why = Literal["idle_timeout", "max_lifetime", "delete_after"]

_S = SandboxState
_ALIVE: Final = frozenset({_S.RUNNING, _S.PAUSED})
_AT_REST: Final = frozenset({_S.SUSPENDED, _S.STOPPED})


class Ruled(Protocol):
    """What of a row matters here."""

    @property
    def state(self) -> SandboxState: ...
    @property
    def lifecycle(self) -> LifecyclePolicy: ...
    @property
    def born_us(self) -> int: ...
    @property
    def active_us(self) -> int: ...
    @property
    def saved_us(self) -> int | None: ...
    @property
    def pool(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Act:
    """Do it now."""

    action: PolicyAction
    why: Why


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the guest what works, and decide again."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing happens before that; None: nothing ever, unless the row changes."""

    until_us: int | None


Step = Act | Ask | Wait


def next_step(row: Ruled, now_us: int, *, asked: bool = False) -> Step:
    """``asked``: ``active_us`` of the row has what the guest says now."""
    if row.pool is not None:
        return Wait(None)
    policy = row.lifecycle
    times: list[int] = []
    for end_us, act in _ends(row, policy):
        if now_us >= end_us:
            return act
        times.append(end_us)
    if (idle_us := _idle_end(row, policy)) is not None:
        if now_us >= idle_us:
            asleep = asked or row.state is _S.PAUSED
            return Act(policy.idle_action, "idle_timeout") if asleep else Ask()
        times.append(idle_us)
    return Wait(min(times, default=None))


def planned_us(row: Ruled) -> dict[Why, int]:
    """When each of its policies acts, if nothing happens until then; those that will not are left out."""
    found = {act.why: end_us for end_us, act in _ends(row, row.lifecycle)}
    idle_us = _idle_end(row, row.lifecycle)
    return found if idle_us is None else {**found, "idle_timeout": idle_us}


def _ends(row: Ruled, policy: LifecyclePolicy) -> list[tuple[int, Act]]:
    found: list[tuple[int, Act]] = []
    possible = row.state in _ALIVE or (row.state in _AT_REST and policy.lifetime_action is PolicyAction.DELETE)
    if policy.max_lifetime_s is not None and possible and policy.lifetime_action is not PolicyAction.NOTHING:
        end_us = row.born_us + int(policy.max_lifetime_s * SECOND_US)
        found.append((end_us, Act(policy.lifetime_action, "max_lifetime")))
    if policy.delete_after_s is not None and row.state in _AT_REST and row.saved_us is not None:
        end_us = row.saved_us + int(policy.delete_after_s * SECOND_US)
        found.append((end_us, Act(PolicyAction.DELETE, "delete_after")))
    return found


def _idle_end(row: Ruled, policy: LifecyclePolicy) -> int | None:
    if policy.idle_timeout_s is None or policy.idle_action is PolicyAction.NOTHING or row.state not in _ALIVE:
        return None
    return row.active_us + int(policy.idle_timeout_s * SECOND_US)


def is_over(row: Ruled, now_us: int) -> bool:
    """Its lifetime has ended, so it is not woken any more unless its policy changes."""
    policy = row.lifecycle
    if policy.max_lifetime_s is None or policy.lifetime_action is PolicyAction.NOTHING:
        return False
    return now_us >= row.born_us + int(policy.max_lifetime_s * SECOND_US)


def retry_delay_s(failures: int) -> float:
    """Before the next try, after so many failures in a row (from 1)."""
    return min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 16))
