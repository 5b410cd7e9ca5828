"""The clock of a sandbox' life: no time limit is over because the sandbox stood still."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest
from guest_process import Context, running_guest
from hypothesis import given
from hypothesis import strategies as st
from processes_of import Processes

from cloche_guest.clock import JUMP_S, TICK_S, LifeClock, Stills
from cloche_guest.pulse import PERIOD_S, until_pulse

LIMIT_S = 5.0
"""All else in a test may take so long."""

STILL_S = 6.0


def test_limits_of_runs_and_processes_do_not_count_the_time_in_which_nothing_ran() -> None:
    """A cell that was restored an hour after its snapshot was interrupted at once: its limit of a minute was over."""
    with running_guest() as guest:
        context, processes = guest.create(), Processes(guest)
        context.ok("import os, time")
        go = guest.home / "go"
        run = context.submit(f"while not os.path.exists({str(go)!r}): time.sleep(0.01)", timeout_s=LIMIT_S)
        process = processes.start(shell=f"while ! [ -e {go} ]; do sleep 0.05; done", timeout_s=LIMIT_S)
        context.until(run, "started")
        guest.process.send_signal(signal.SIGSTOP)
        threading.Event().wait(STILL_S)  # nothing else stands still for a time
        guest.process.send_signal(signal.SIGCONT)
        go.touch()
        done = context.wait(run)
        assert done["status"] == "ok", done
        assert done["duration_s"] < STILL_S
        processes.wait(process)
        assert processes.get(process)["exit"]["code"] == 0


def test_limits_count_all_other_time(context: Context) -> None:
    assert context.run("import time; time.sleep(60)", timeout_s=0.2)["status"] == "timed_out"


@given(st.lists(st.floats(0, 2 * JUMP_S)), st.floats(2 * TICK_S + JUMP_S, 1e6))
def test_a_jump_is_forgiven_and_small_delays_are_not(delays: list[float], jump_s: float) -> None:
    now = 100.0
    stills = Stills(now)
    for delay_s in delays:
        now += TICK_S + min(delay_s, 0.999 * JUMP_S)
        stills.look(now)
    assert stills.total_s == 0
    stills.look(now + TICK_S + jump_s)
    assert stills.total_s == pytest.approx(jump_s)


async def test_the_clock_goes_on_with_the_loop() -> None:
    clock = LifeClock()
    began = clock()
    await asyncio.sleep(0.05)
    assert 0.05 <= clock() - began < 60
    clock.stop()


@given(st.floats(0, 1e7), st.floats(0, 0.9))
def test_all_who_wait_for_the_pulse_wake_at_the_same_moment(now: float, later: float) -> None:
    first = now + until_pulse(now)
    assert 0 < first - now <= PERIOD_S + 0.002
    if now + later < first - 0.002:
        assert now + later + until_pulse(now + later) == pytest.approx(first, abs=0.002)
