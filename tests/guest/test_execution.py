"""How a run ended: every verdict, from facts alone."""

from __future__ import annotations

import pytest

from cloche.models import Failure, RunCreate, RunError, RunStatus
from cloche_guest.contexts._execution import Execution
from cloche_guest.contexts._router import Failed, Idle, Replied, Started, Text
from cloche_guest.contexts._run import RunRecord
from cloche_guest.contexts._supervision import StopReason, Watch

DEATH = Failure(reason="exit", message="it ended", exit_code=1)
OK = Replied("ok", 1, None)
ERROR = Replied("error", 1, RunError(name="E", value="", traceback=[]))


async def ended(*facts: Replied | Idle, stop: StopReason | None = None, restarted: bool = False) -> Execution:
    run = RunRecord("run-000000000000", "default", RunCreate(code="1"))
    execution = Execution(run, "request", Watch(0, 10, 5))
    run.start(1)
    execution.take(Started(1), 1)
    if stop is not None:
        execution.interrupted(2, stop)
    run.kernel_restarted = restarted
    for fact in facts:
        execution.take(fact, 3)
    return execution


@pytest.mark.parametrize(
    ("facts", "stop", "restarted", "death", "status"),
    [
        ((OK, Idle()), None, False, None, RunStatus.OK),
        ((ERROR, Idle()), None, False, None, RunStatus.ERROR),
        ((ERROR, Idle()), "interrupted", False, None, RunStatus.INTERRUPTED),
        ((OK, Idle()), "interrupted", False, None, RunStatus.INTERRUPTED),
        ((OK, Idle()), "timeout", False, None, RunStatus.TIMED_OUT),
        ((), "interrupted", True, DEATH, RunStatus.INTERRUPTED),
        ((), "timeout", True, DEATH, RunStatus.TIMED_OUT),
        ((), None, False, DEATH, RunStatus.FAILED),
        ((OK,), None, False, DEATH, RunStatus.FAILED),  # half of it: never success without having seen it
        ((OK, Idle()), None, False, DEATH, RunStatus.OK),  # it was over when the kernel ended
        # The reply was lost: sandbox-sdk#873 invented a success, opensandbox#1206 waited on.
        ((Idle(),), None, False, None, RunStatus.ERROR),
    ],
)
async def test_verdicts(
    facts: tuple[Replied | Idle, ...],
    stop: StopReason | None,
    restarted: bool,
    death: Failure | None,
    status: RunStatus,
) -> None:
    execution = await ended(*facts, stop=stop, restarted=restarted)
    assert execution.verdict(death)[0] is status


async def test_a_failure_says_why() -> None:
    assert (await ended()).verdict(DEATH)[1] is DEATH
    timed_out = (await ended(OK, Idle(), stop="timeout")).verdict(None)[1]
    assert timed_out is not None
    assert (timed_out.reason, "variables are kept" in timed_out.message) == ("timeout", True)
    assert (await ended(OK, Idle())).verdict(None)[1] is None


async def test_only_facts_that_may_end_it_wake_its_context() -> None:
    execution = await ended()
    assert not execution.take(Text("stdout", "x"), 4)
    assert not execution.take(Failed(RunError(name="E", value="", traceback=[])), 4)
    assert execution.take(Idle(), 4)
    assert execution.take(OK, 4)


async def test_a_second_interrupt_keeps_the_time_and_the_reason_of_the_first() -> None:
    execution = await ended(stop="timeout")
    execution.interrupted(9, None)
    assert (execution.watch.interrupted_at, execution.watch.interrupts, execution.stop) == (2, 2, "timeout")
