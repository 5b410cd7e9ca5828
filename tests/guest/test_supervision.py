"""When a run is over: every row of the table in `_supervision`, with a clock that is a number."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cloche_guest.contexts._supervision import BEGIN_WAIT_S, HALF_WAIT_S, PROBE_WAIT_S, Decision, Step, Watch, decide

RUNNING = Watch(started_at=100.0, timeout_s=10.0, grace_s=4.0, begun=True)


def test_a_running_run_is_waited_for_until_its_time_is_over() -> None:
    assert decide(RUNNING, 105) == Decision(Step.WAIT, until=110)


def test_reply_and_idle_end_it() -> None:
    assert decide(replace(RUNNING, replied_at=101, idle_at=101), 101).step is Step.FINISH


def test_one_of_the_two_is_waited_for_briefly_and_then_probed() -> None:
    """Finding 4: idle may be lost. And the reply is, when an interrupt hits between the code's end and the reply."""
    for half in (replace(RUNNING, replied_at=101), replace(RUNNING, idle_at=101)):
        assert decide(half, 101) == Decision(Step.WAIT, until=101 + HALF_WAIT_S)
        assert decide(half, 101 + HALF_WAIT_S).step is Step.PROBE


def test_the_answer_to_the_probe_ends_it() -> None:
    probed = replace(RUNNING, replied_at=101, probed_at=102)
    assert decide(probed, 102) == Decision(Step.WAIT, until=102 + PROBE_WAIT_S)
    assert decide(replace(probed, probe_answered=True), 102).step is Step.FINISH


def test_a_probe_without_an_answer_ends_it_too() -> None:
    """Never hang: every wait has a bound."""
    assert decide(replace(RUNNING, idle_at=101, probed_at=102), 102 + PROBE_WAIT_S).step is Step.FINISH


def test_asked_to_stop_it_is_interrupted() -> None:
    assert decide(replace(RUNNING, stop_asked=True), 101) == Decision(Step.INTERRUPT, reason="interrupted")


def test_the_interrupt_is_held_back_until_the_code_begins() -> None:
    """Between two cells the kernel ignores SIGINT: the interrupt of a run that was just sent would be lost."""
    sent = replace(RUNNING, begun=False, stop_asked=True)
    assert decide(sent, 100.5) == Decision(Step.WAIT, until=100 + BEGIN_WAIT_S)
    assert decide(replace(sent, begun=True), 100.5).step is Step.INTERRUPT
    assert decide(sent, 100 + BEGIN_WAIT_S).step is Step.INTERRUPT


def test_over_its_time_it_is_interrupted() -> None:
    assert decide(RUNNING, 110) == Decision(Step.INTERRUPT, reason="timeout")


def test_after_half_of_the_grace_it_is_interrupted_again_and_then_killed() -> None:
    once = replace(RUNNING, stop_asked=True, interrupted_at=105, interrupts=1)
    assert decide(once, 106) == Decision(Step.WAIT, until=107) or decide(once, 106).step is Step.WAIT
    assert decide(once, 107).step is Step.INTERRUPT
    twice = replace(once, interrupts=2)
    assert decide(twice, 108).step is Step.WAIT
    assert decide(twice, 109).step is Step.KILL


def test_a_run_that_is_as_good_as_over_is_not_interrupted() -> None:
    """The signal would hit whatever comes next."""
    assert decide(replace(RUNNING, replied_at=101, stop_asked=True), 101).step is Step.WAIT


def test_a_dead_kernel_ends_it_whatever_else_is_so() -> None:
    assert decide(replace(RUNNING, dead=True, stop_asked=True), 200).step is Step.FINISH


times = st.one_of(st.none(), st.floats(100, 200))


@given(
    st.builds(
        Watch,
        started_at=st.just(100.0),
        timeout_s=st.floats(0.1, 50),
        grace_s=st.floats(0.1, 50),
        replied_at=times,
        idle_at=times,
        begun=st.booleans(),
        stop_asked=st.booleans(),
        interrupted_at=times,
        interrupts=st.integers(0, 2),
        probed_at=times,
        probe_answered=st.booleans(),
        dead=st.booleans(),
    ),
    st.floats(100, 400),
)
def test_a_wait_always_ends_in_the_future(watch: Watch, now: float) -> None:
    """Whatever the facts: either there is something to do now, or there is a time to look again."""
    decision = decide(watch, now)
    assert decision.step is not Step.WAIT or decision.until > now
