"""The order of runs: pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloche.models import RunStatus
from cloche_guest.contexts._queue import MAX_QUEUE, Queue


def test_runs_start_in_the_order_they_came() -> None:
    queue = Queue().add("a").add("b").start_next()
    assert (queue.running, queue.waiting) == ("a", ("b",))
    assert queue.run_ids == ["a", "b"]


def test_a_good_end_aborts_nobody() -> None:
    queue = Queue("a", ("b", "c"))
    assert queue.finish(RunStatus.OK, stop_on_error=True) == (Queue(None, ("b", "c")), ())


def test_a_bad_end_aborts_what_waits_if_it_was_asked_to() -> None:
    queue = Queue("a", ("b", "c"))
    for status in set(RunStatus) - {RunStatus.OK}:
        assert queue.finish(status, stop_on_error=True) == (Queue(), ("b", "c"))
        assert queue.finish(status, stop_on_error=False) == (Queue(None, ("b", "c")), ())


def test_a_cancelled_run_leaves_the_others() -> None:
    assert Queue("a", ("b", "c")).cancel("b") == Queue("a", ("c",))
    assert Queue("a", ("b",)).cancel("unknown") == Queue("a", ("b",))


def test_it_is_full_at_its_bound() -> None:
    assert not Queue("a", ("x",) * (MAX_QUEUE - 1)).is_full
    assert Queue("a", ("x",) * MAX_QUEUE).is_full


@given(st.lists(st.sampled_from(["add", "start", "ok", "bad", "cancel"])))
def test_no_run_is_lost_and_none_is_there_twice(steps: list[str]) -> None:
    queue, made, gone = Queue(), 0, set[str]()
    for step in steps:
        if step == "add":
            queue, made = queue.add(str(made)), made + 1
        elif step == "start" and queue.waiting and not queue.running:
            queue = queue.start_next()
        elif step in ("ok", "bad") and queue.running:
            gone.add(queue.running)
            queue, aborted = queue.finish(RunStatus.OK if step == "ok" else RunStatus.ERROR, stop_on_error=True)
            gone |= set(aborted)
        elif step == "cancel" and queue.waiting:
            gone.add(queue.waiting[-1])
            queue = queue.cancel(queue.waiting[-1])
    assert sorted([*queue.run_ids, *gone]) == sorted(str(number) for number in range(made))
