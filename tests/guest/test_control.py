"""Interrupts, timeouts, input, the queue, and the end of kernels."""

from __future__ import annotations

import json
import os
import time

import pytest
from guest_process import GRACE_S, Context, Guest, is_running, result, text, wait_for

STOPPABLE = {
    "a sleep": "import time\nprint('go')\ntime.sleep(60)",
    "a busy loop": "print('go')\nwhile True: pass",
    "an event": "import threading\nprint('go')\nthreading.Event().wait()",
    "input()": "print('go')\ninput()",
    "a shell escape": "print('go')\n!sleep 60",
    "a child process": "import subprocess\nprint('go')\nsubprocess.run(['sleep', '60'])",
    "a pool of processes": (
        "import multiprocessing, time\nwith multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "  results = pool.map_async(time.sleep, [60, 60])\n  print('go')\n  results.get()"
    ),
    # ipython/ipykernel#881: await was not interrupted until it finished (finding 5).
    "an awaited sleep": "import asyncio\nprint('go')\nawait asyncio.sleep(60)",
    # ipython/ipykernel#1239: gather with blocking calls ignored the interrupt.
    "a gather": "import asyncio\nprint('go')\nawait asyncio.gather(*(asyncio.sleep(60) for _ in range(3)))",
}


@pytest.mark.parametrize("what", STOPPABLE)
def test_an_interrupt_stops(shared: Context, what: str) -> None:
    """J, table: interrupt of each kind of code; the variables stay."""
    shared.ok("kept = 7")
    run_id = shared.submit(STOPPABLE[what], allow_stdin=True)
    shared.until(run_id, "stdout", text="go\n")
    asked = time.monotonic()
    shared.interrupt(run_id)
    run = shared.wait(run_id)
    assert run["status"] == "interrupted", run
    assert not run["kernel_restarted"]
    assert time.monotonic() - asked < GRACE_S  # after which the kernel would be killed
    assert shared.value("kept") == "7"


def test_after_an_interrupted_await_async_cells_still_work(shared: Context) -> None:
    """ipython/ipykernel#263: an interrupt closed the asyncio loop for later cells."""
    run_id = shared.submit(STOPPABLE["an awaited sleep"])
    shared.until(run_id, "stdout")
    shared.interrupt()
    shared.wait(run_id)
    assert shared.value("import asyncio\nawait asyncio.sleep(0, 'fine')") == "'fine'"


def test_the_children_of_a_cell_die_with_its_interrupt(shared: Context) -> None:
    """vscode-jupyter#14959, prime-agent PR#1030: children outlive an interrupt when the kernel leads no group."""
    run_id = shared.submit("import subprocess\np = subprocess.Popen(['sleep', '60'])\nprint(p.pid)\np.wait()")
    pid = int(shared.until(run_id, "stdout")["data"]["text"])
    shared.interrupt(run_id)
    shared.wait(run_id)
    wait_for(lambda: not is_running(pid), "the child to die")


def test_a_run_that_ignores_the_interrupt_loses_its_kernel_and_says_so(guest: Guest) -> None:
    context = guest.create(interrupt_grace_s=0.3)
    ignore = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    code = f"import signal\n{ignore}\nprint('go')\nwhile True: {ignore}"
    run_id = context.submit(code)
    context.until(run_id, "stdout")
    context.interrupt(run_id)
    run = context.wait(run_id)
    assert (run["status"], run["kernel_restarted"]) == ("interrupted", True)
    assert run["failure"]["reason"] == "interrupted"
    after = context.ok("'code' in globals(), 1 + 1")
    assert (result(after), after["generation"]) == ("(False, 2)", 2)
    context.delete()


def test_an_interrupt_with_nothing_running_does_nothing(shared: Context) -> None:
    shared.interrupt()
    assert shared.value("1") == "1"


def test_a_finished_run_is_not_changed_by_an_interrupt(shared: Context) -> None:
    run = shared.ok("1")
    assert shared.interrupt(run["id"])["status"] == "ok"


def test_a_timeout_interrupts_and_keeps_the_variables(shared: Context) -> None:
    """2.3: a timed-out run was not interrupted. sandbox-sdk#438: one stuck command blocked all later ones."""
    shared.ok("kept = 8")
    run = shared.run("import time\ntime.sleep(60)", timeout_s=0.2)
    assert (run["status"], run["failure"]["reason"]) == ("timed_out", "timeout")
    assert not run["kernel_restarted"]
    assert run["duration_s"] < GRACE_S
    assert shared.value("kept") == "8"


def test_a_timeout_reaches_an_awaiting_cell(shared: Context) -> None:
    run = shared.run("import asyncio\nawait asyncio.sleep(60)", timeout_s=0.2)
    assert run["status"] == "timed_out"
    assert run["duration_s"] < GRACE_S


def test_a_timeout_counts_from_the_start_of_the_run_and_not_in_the_queue(shared: Context) -> None:
    slow = shared.submit("import time\ntime.sleep(1.2)")
    quick = shared.wait(shared.submit("'in time'", timeout_s=1))
    # A machine may stand still for a second, but then the run itself has lasted that long.
    assert quick["status"] == "ok" or (quick["status"] == "timed_out" and quick["duration_s"] >= 1), quick
    assert shared.wait(slow)["status"] == "ok"


def test_the_late_reply_of_a_timed_out_run_goes_to_nobody(shared: Context) -> None:
    """2.3: replies were not matched by id, so a late one was given to the next run."""
    slow = shared.submit(
        "try:\n  import time; time.sleep(60)\nexcept KeyboardInterrupt: time.sleep(0.2)\n'late'",
        timeout_s=0.1,
        stop_on_error=False,
    )
    next_run = shared.submit("'mine'")
    assert result(shared.wait(next_run)) == "'mine'"
    assert shared.wait(slow)["status"] == "timed_out"


# input()


def test_without_stdin_input_raises_at_once(shared: Context) -> None:
    """2.3: input() swallowed the next request line."""
    for code in ("input()", "import getpass\ngetpass.getpass()"):
        run = shared.run(code)
        assert run["error"]["name"] == "StdinNotImplementedError"
        assert run["error"]["value"].startswith(
            f"{code.splitlines()[-1].split('.')[-1]} was called, and nobody can answer"
        )
        assert shared.value("'next'") == "'next'"


def test_input_asks_and_gets_its_answer(shared: Context) -> None:
    run_id = shared.submit("name = input('who? ')\nprint('hello', name)", allow_stdin=True)
    event = shared.until(run_id, "input_request")
    assert event["data"] == {"prompt": "who? ", "password": False}
    assert shared.get(run_id)["input_request"] == {"prompt": "who? ", "password": False}
    shared.guest.call("POST", f"{shared.path}/runs/{run_id}/input", {"text": "Ana"})
    run = shared.wait(run_id)
    assert text(run) == "hello Ana\n"
    assert run["input_request"] is None


def test_getpass_asks_for_a_password(shared: Context) -> None:
    run_id = shared.submit("import getpass\nprint(len(getpass.getpass('key: ')))", allow_stdin=True)
    assert shared.until(run_id, "input_request")["data"] == {"prompt": "key: ", "password": True}
    shared.guest.call("POST", f"{shared.path}/runs/{run_id}/input", {"text": "secret"})
    run = shared.wait(run_id)
    assert text(run) == "6\n"
    assert "secret" not in json.dumps(run)


def test_input_for_a_run_that_waits_for_none_is_a_conflict(shared: Context) -> None:
    run = shared.ok("1", allow_stdin=True)
    error = shared.guest.call("POST", f"{shared.path}/runs/{run['id']}/input", {"text": "x"}, status=409)
    assert error["code"] == "conflict"


# The queue


def test_queued_runs_are_visible_in_order(context: Context) -> None:
    blocker = context.submit("input()", allow_stdin=True)
    context.until(blocker, "input_request")
    queued = [context.submit(f"{number}") for number in range(3)]
    assert context.info()["queue"] == [blocker, *queued]
    assert context.info()["state"] == "busy"
    assert [context.get(run_id)["state"] for run_id in queued] == ["queued"] * 3
    context.guest.call("POST", f"{context.path}/runs/{blocker}/input", {"text": ""})
    assert [result(context.wait(run_id)) for run_id in queued] == ["0", "1", "2"]
    assert context.info()["queue"] == []


@pytest.mark.parametrize(("stop_on_error", "status"), [(True, "aborted"), (False, "ok")])
def test_an_error_aborts_the_runs_behind_it_if_it_was_asked_to(
    context: Context, stop_on_error: bool, status: str
) -> None:
    """J: queue after an error; three queued."""
    blocker = context.submit("input()", allow_stdin=True)
    context.until(blocker, "input_request")
    failing = context.submit("1/0", stop_on_error=stop_on_error)
    behind = [context.submit("'b'"), context.submit("'c'")]
    context.guest.call("POST", f"{context.path}/runs/{blocker}/input", {"text": ""})
    assert context.wait(failing)["status"] == "error"
    assert [context.wait(run_id)["status"] for run_id in behind] == [status] * 2
    assert context.value("'after'") == "'after'"  # a stock kernel aborts what arrives just after an error


@pytest.mark.parametrize(("stop_on_error", "status"), [(True, "aborted"), (False, "ok")])
def test_an_interrupt_follows_the_same_rule(context: Context, stop_on_error: bool, status: str) -> None:
    """jupyter/notebook#1889: an interrupt stopped one cell and the queue went on, unasked."""
    running = context.submit(STOPPABLE["a sleep"], stop_on_error=stop_on_error)
    context.until(running, "stdout")
    behind = context.submit("'b'")
    context.interrupt(running)
    assert context.wait(running)["status"] == "interrupted"
    assert context.wait(behind)["status"] == status


def test_a_queued_run_can_be_cancelled_alone(context: Context) -> None:
    blocker = context.submit("input()", allow_stdin=True)
    context.until(blocker, "input_request")
    cancelled, kept = context.submit("ran = 1"), context.submit("'kept'")
    assert context.interrupt(cancelled)["status"] == "aborted"
    context.guest.call("POST", f"{context.path}/runs/{blocker}/input", {"text": ""})
    assert context.wait(kept)["status"] == "ok"
    assert context.value("'ran' in globals()") == "False"


def test_runs_of_one_context_never_overlap(shared: Context) -> None:
    """sandbox-sdk#258, #290: executor lock race, concurrent runs interleaved."""
    shared.ok("log = []")
    code = "import asyncio\nlog.append('in')\nawait asyncio.sleep(0.005)\nlog.append('out')"
    runs = [shared.submit(code) for _ in range(10)]
    assert {shared.wait(run_id)["status"] for run_id in runs} == {"ok"}
    assert shared.value("log == ['in', 'out'] * 10") == "True"


def test_the_queue_is_bounded(context: Context) -> None:
    blocker = context.submit("input()", allow_stdin=True)
    context.until(blocker, "input_request")
    for _ in range(1000):
        context.submit("None")
    error = context.guest.call("POST", f"{context.path}/runs", {"code": "None"}, status=429)
    assert (error["code"], error["details"]["limit"]) == ("limit_reached", 1000)


# Death


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("import os\nos._exit(7)", {"reason": "exit", "exit_code": 7, "signal": None}),
        ("import ctypes\nctypes.string_at(0)", {"reason": "signal", "exit_code": None, "signal": "SIGSEGV"}),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", {"reason": "signal", "signal": "SIGKILL"}),
    ],
)
def test_a_dead_kernel_ends_its_run_at_once_with_the_reason(
    context: Context, code: str, failure: dict[str, object]
) -> None:
    """2.3: os._exit hung the request. nbclient#88: waits forever when the kernel is killed. jupyter_client polls 3 s."""
    context.ok("lost = 1")
    run = context.run(code)
    assert (run["status"], run["kernel_restarted"]) == ("failed", True)
    assert run["failure"] | failure == run["failure"]
    after = context.ok("'lost' in globals()")
    assert (result(after), after["generation"]) == ("False", 2)
    assert context.info()["failure"]["reason"] == failure["reason"]  # said, not silent: jupyterlab#4273
    assert context.context_until("context_state", state="restarting")["data"]["failure"] == run["failure"]
    for _ in range(10):  # once at once is enough: others may be busy now and then
        if run["duration_s"] < 2:
            return
        run = context.run(code)
    pytest.fail(f"the end was seen after {run['duration_s']} s")


def test_a_crash_says_where(context: Context) -> None:
    run = context.run("import ctypes\ndef deep(): ctypes.string_at(0)\ndeep()")
    assert "Segmentation fault" in run["failure"]["message"]
    assert "in deep" in run["failure"]["message"]


def test_an_idle_kernel_that_dies_is_replaced(context: Context) -> None:
    pid = int(context.value("import os; os.getpid()"))
    os.kill(pid, 9)
    event = context.context_until("context_state", state="idle", generation=2)
    assert event["data"]["failure"]["signal"] == "SIGKILL"
    assert context.value("1 + 1") == "2"


def test_with_policy_never_the_context_stays_dead_until_restarted(guest: Guest) -> None:
    context = guest.create(restart_policy="never")
    run_id = context.submit("import time\nprint('go')\ntime.sleep(60)", stop_on_error=False)
    context.until(run_id, "stdout")
    behind = context.submit("1")
    pid = next(int(name) for name in os.listdir("/proc") if name.isdigit() and _is_kernel_of(int(name), context.id))
    os.kill(pid, 9)
    run = context.wait(run_id)
    assert (run["status"], run["kernel_restarted"]) == ("failed", False)
    assert context.wait(behind)["status"] == "aborted"
    assert context.info()["state"] == "dead"
    error = guest.call("POST", f"{context.path}/runs", {"code": "1"}, status=409)
    assert error["code"] == "context_dead"
    assert error["details"]["failure"]["signal"] == "SIGKILL"
    guest.call("POST", f"{context.path}/restart")
    assert context.value("1") == "1"
    context.delete()


def _is_kernel_of(pid: int, context_id: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environ, open(f"/proc/{pid}/cmdline", "rb") as command:
            return f"CLOCHE_KERNEL={context_id}:".encode() in environ.read() and b"launch.py" in command.read()
    except OSError:
        return False


def test_a_restart_forgets_everything_and_ends_what_ran(context: Context) -> None:
    context.ok("gone = 1")
    running = context.submit(STOPPABLE["a sleep"])
    context.until(running, "stdout")
    queued = context.submit("1")
    restarted = context.guest.call("POST", f"{context.path}/restart")
    assert (restarted["generation"], restarted["state"], restarted["failure"]) == (2, "idle", None)
    run = context.wait(running)
    assert (run["status"], run["failure"]["reason"], run["kernel_restarted"]) == ("failed", "restarted", True)
    assert context.wait(queued)["status"] == "aborted"
    assert context.value("'gone' in globals()") == "False"


def test_a_restart_kills_everything_the_kernel_started(context: Context) -> None:
    """jupyter_client#104: subprocesses survive a restart. Also those that left its session, and those that forked twice."""
    code = """
import os, subprocess, sys
plain = subprocess.Popen(['sleep', '60'])
session = subprocess.Popen(['sleep', '60'], start_new_session=True)
daemon = int(subprocess.check_output(['sh', '-c', 'setsid sleep 60 >/dev/null 2>&1 & echo $!']))
print(plain.pid, session.pid, daemon)
"""
    pids = [int(word) for word in text(context.ok(code)).split()]
    assert all(is_running(pid) for pid in pids)
    context.guest.call("POST", f"{context.path}/restart")
    assert not any(is_running(pid) for pid in pids)


def test_deleting_a_context_ends_its_run_and_its_processes(guest: Guest) -> None:
    context = guest.create()
    run_id = context.submit(
        "import subprocess\nprint(subprocess.Popen(['sleep', '60']).pid)\ninput()", allow_stdin=True
    )
    pid = int(context.until(run_id, "stdout")["data"]["text"])
    events = context.events(run_id)
    next(events)
    assert context.delete()["state"] == "dead"
    assert [event["data"]["status"] for event in events if event["type"] == "finished"] == ["failed"]
    assert not is_running(pid)
    assert guest.call("GET", context.path, status=410)["code"] == "gone"


def test_a_forked_child_that_reaches_the_end_of_the_cell_ends_there(shared: Context) -> None:
    """jupyter/notebook#3106: os.fork() in a cell left a second kernel loop at 100 % CPU."""
    run = shared.ok("import os\nchild = os.fork()\nif not child: print('from the child')\nelse: status = os.wait()[1]")
    assert text(run) == "from the child\n"
    assert shared.value("status") == "0"
    run = shared.ok("if not os.fork(): 1/0\nelse: status = os.wait()[1]\nstatus")
    assert result(run) == "256"
    assert "ZeroDivisionError" in text(run, "stderr")
    assert run["error"] is None


def test_a_forked_child_of_an_async_cell_ends_there_too(shared: Context) -> None:
    code = "import asyncio, os\nawait asyncio.sleep(0)\nif not os.fork(): print('child')\nelse: os.wait()"
    assert text(shared.ok(code)) == "child\n"
    assert shared.value("1") == "1"


def test_multiprocessing_prints_arrive(shared: Context) -> None:
    """ipython/ipykernel#334: IOStream.flush timed out in forked workers, the kernel was stuck."""
    code = """
import multiprocessing
def work(number):
    print('working on', number)
    return number * number
with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(work, range(4)))
"""
    lines = text(shared.ok(code)).splitlines()
    assert sorted(lines) == ["[0, 1, 4, 9]", *(f"working on {number}" for number in range(4))]


def test_what_a_kernel_said_before_it_died_is_kept(context: Context) -> None:
    """E2B#1259, sandbox-sdk#827: the last output before the end was cut off."""
    run = context.run("import os, time\nprint('last words', flush=True)\ntime.sleep(0.2)\nos._exit(3)")
    assert run["status"] == "failed"
    assert text(run) == "last words\n"
