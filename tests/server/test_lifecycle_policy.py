"""When policies act: pure, over rows and times; and the keeper, with a guest that says how busy it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cloche.models import LifecyclePolicy, PolicyAction, SandboxState
from cloche_server.lifecycle.policy import Act, Ask, Wait, is_over, next_step, retry_delay_s

S, A = SandboxState, PolicyAction
SECOND = 1_000_000


@dataclass
class Row:
    state: SandboxState = S.RUNNING
    lifecycle: LifecyclePolicy = field(default_factory=LifecyclePolicy)
    born_us: int = 0
    active_us: int = 0
    saved_us: int | None = None
    pool: str | None = None


IDLE = LifecyclePolicy(idle_timeout_s=10)


def test_without_times_nothing_ever_happens() -> None:
    for state in S:
        assert next_step(Row(state), 10**15) == Wait(None)


def test_an_idle_sandbox_is_asked_first_and_then_suspended() -> None:
    row = Row(lifecycle=IDLE, active_us=5 * SECOND)
    assert next_step(row, 14 * SECOND) == Wait(15 * SECOND)
    assert next_step(row, 15 * SECOND) == Ask()
    assert next_step(row, 15 * SECOND, asked=True) == Act(A.SUSPEND, "idle_timeout")


def test_a_paused_one_is_not_asked_for_it_cannot_answer() -> None:
    assert next_step(Row(S.PAUSED, IDLE), 10 * SECOND) == Act(A.SUSPEND, "idle_timeout")


@pytest.mark.parametrize("state", [S.CREATING, S.SUSPENDING, S.RESUMING, S.SUSPENDED, S.STOPPED, S.FAILED, S.DELETED])
def test_only_what_is_alive_can_be_idle(state: S) -> None:
    assert next_step(Row(state, IDLE), 10**15) == Wait(None)


def test_a_lifetime_ends_whatever_works() -> None:
    row = Row(lifecycle=LifecyclePolicy(max_lifetime_s=60, lifetime_action=A.STOP), active_us=59 * SECOND)
    assert next_step(row, 59 * SECOND) == Wait(60 * SECOND)
    assert next_step(row, 60 * SECOND) == Act(A.STOP, "max_lifetime")
    assert is_over(row, 60 * SECOND)
    assert not is_over(row, 59 * SECOND)


def test_one_that_rests_when_its_lifetime_ends_is_only_ever_deleted() -> None:
    for action, step in ((A.STOP, Wait(None)), (A.DELETE, Act(A.DELETE, "max_lifetime"))):
        policy = LifecyclePolicy(max_lifetime_s=60, lifetime_action=action)
        assert next_step(Row(S.SUSPENDED, policy, saved_us=1), 60 * SECOND) == step


def test_one_that_rested_for_long_enough_is_deleted() -> None:
    row = Row(S.STOPPED, LifecyclePolicy(delete_after_s=100), saved_us=5 * SECOND)
    assert next_step(row, 104 * SECOND) == Wait(105 * SECOND)
    assert next_step(row, 105 * SECOND) == Act(A.DELETE, "delete_after")


def test_one_that_waits_in_a_pool_has_no_life_yet() -> None:
    policy = LifecyclePolicy(idle_timeout_s=1, max_lifetime_s=1)
    assert next_step(Row(lifecycle=policy, pool="p"), 10**15) == Wait(None)
    assert next_step(Row(lifecycle=policy), 10**15) == Act(A.DELETE, "max_lifetime")


def test_the_action_nothing_is_none() -> None:
    policy = LifecyclePolicy(idle_timeout_s=1, idle_action=A.NOTHING, max_lifetime_s=1, lifetime_action=A.NOTHING)
    assert next_step(Row(lifecycle=policy), 10**15) == Wait(None)
    assert not is_over(Row(lifecycle=policy), 10**15)


@pytest.mark.parametrize("name", ["idle_timeout_s", "max_lifetime_s", "delete_after_s"])
@pytest.mark.parametrize("seconds", [0, -1, 0.5, float("nan"), float("inf")])
def test_times_of_nothing_or_less_are_refused(name: str, seconds: float) -> None:
    """e2b-dev/infra#3418: a timeout of 0 was taken, and the sandbox was gone before its id was read."""
    with pytest.raises(ValidationError):
        LifecyclePolicy.model_validate({name: seconds})


times = st.none() | st.integers(1, 10_000)


@given(st.sampled_from(S), times, times, times, st.integers(0, 20_000), st.integers(0, 20_000), st.booleans())
def test_whoever_waits_until_the_time_that_is_named_finds_something_to_do(
    state: S, idle: int | None, life: int | None, after: int | None, active: int, now: int, asked: bool
) -> None:
    """Else the keeper would turn in circles, or sleep for ever."""
    policy = LifecyclePolicy(idle_timeout_s=idle, max_lifetime_s=life, delete_after_s=after)
    row = Row(state, policy, active_us=active * SECOND, saved_us=active * SECOND)
    step = next_step(row, now * SECOND, asked=asked)
    if isinstance(step, Wait) and step.until_us is not None:
        assert step.until_us > now * SECOND
        assert not isinstance(next_step(row, step.until_us), Wait)


def test_failures_are_tried_again_later_and_later() -> None:
    delays = [retry_delay_s(n) for n in range(1, 40)]
    assert delays[:4] == [5, 10, 20, 40]
    assert delays[-1] == 300
    assert delays == sorted(delays)
