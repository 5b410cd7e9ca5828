"""The kernel that is made ahead: nobody can tell it from one that was forked when it was asked for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guest_process import Context, Guest, is_running, running_guest, wait_for
from test_zygote import LIMITS, OF_TESTS, PATIENT, create_ahead, create_forked, preload, spare_of, started

from cloche_guest.contexts._preload import differs_at_start


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """With a zygote, and a kernel that waits."""
    path = tmp_path_factory.mktemp("packages")
    (path / f"{OF_TESTS}.py").write_text("")
    with running_guest(before=PATIENT, PYTHONPATH=str(path)) as made:
        made.packages = path  # type: ignore[attr-defined]
        made.create()
        preload(made)
        create_ahead(made).delete()
        yield made


def pid_of(context: Context) -> int:
    return int(context.value("__import__('os').getpid()"))


def test_a_context_gets_the_kernel_that_waits_and_another_one_takes_its_place(guest: Guest) -> None:
    create_forked(guest).delete()
    spare = spare_of(guest)
    context = guest.create()
    assert pid_of(context) == spare
    assert spare_of(guest) != spare
    context.delete()
    assert not is_running(spare)


STATE = """
import os, resource, signal, sys, tempfile, threading, time
shell, home = get_ipython(), os.path.expanduser('~')
sorted((
    ('names', sorted(name for name in globals())), ('In', In[:-1]), ('Out', Out), ('_', (_, __, ___, _i, _ii, _iii)),
    ('count', shell.execution_count), ('dirs', (os.getcwd(), [str(each) for each in _dh], shell.starting_dir)),
    ('environ', sorted((k, v) for k, v in os.environ.items() if k not in ('CLOCHE_CONTEXT_ID', 'CLOCHE_KERNEL'))),
    ('path', sys.path), ('arguments', len(sys.argv)), ('temporary', tempfile.gettempdir()), ('zone', time.tzname),
    ('signals', [str(signal.getsignal(n)) for n in (2, 15, 17)]), ('limits', resource.getrlimit(2)),
    ('threads', sorted(thread.name.rstrip('0123456789') for thread in threading.enumerate())),
    ('hooks', {name: len(each) for name, each in shell.events.callbacks.items()}), ('ids', (os.getsid(0), os.getpgid(0))
     == (os.getpid(), os.getpid())), ('last', (shell.last_execution_succeeded, shell.last_execution_result)),
    ('file', sorted(os.listdir('/proc/self/task')) != []), ('umask', os.umask(0o22)),
))
"""


def test_its_state_is_that_of_one_that_was_forked_when_it_was_asked_for(guest: Guest, tmp_path: Path) -> None:
    body = {"cwd": str(tmp_path), "env": {"MINE": "1", "TZ": "Asia/Tokyo", "TMPDIR": str(tmp_path)}}
    ahead, now = create_ahead(guest, **body), create_forked(guest, **body, limits=LIMITS)
    assert not started(now)["ahead"]
    ours, theirs = ahead.ok(STATE), now.ok(STATE)
    assert ours["execution_count"] == theirs["execution_count"] == 1
    assert ours["outputs"][-1]["data"]["text/plain"] == theirs["outputs"][-1]["data"]["text/plain"]
    assert f"'{tmp_path}'" in ours["outputs"][-1]["data"]["text/plain"]
    assert [entry["code"] for entry in guest.call("GET", f"{ahead.path}/history")["entries"]] == [STATE]
    assert {event["type"] for event in _journal(ahead)} == {event["type"] for event in _journal(now)}
    for context in (ahead, now):
        context.delete()


def _journal(context: Context) -> list[dict[str, str]]:
    """Up to the end of the run."""
    events = []
    for event in context.events():
        events.append(event)
        if event["type"] == "run_finished":
            return events
    raise AssertionError("the journal ended")


def test_their_random_numbers_differ(guest: Guest) -> None:
    first, second = create_ahead(guest), create_ahead(guest)
    assert first.value("import random; random.random()") != second.value("import random; random.random()")
    first.delete()
    second.delete()


@pytest.mark.parametrize(
    "body", [{"env": {"IPYTHONDIR": "/tmp/elsewhere"}}, {"env": {"JUPYTER_X": "1"}}, {"limits": LIMITS}]
)
def test_a_context_that_must_begin_otherwise_leaves_it_to_the_next(guest: Guest, body: dict[str, object]) -> None:
    create_ahead(guest).delete()
    spare = spare_of(guest)
    context = create_forked(guest, **body)
    assert not started(context)["ahead"]
    context.delete()
    context = guest.create()
    assert pid_of(context) == spare
    context.delete()


def test_a_bad_directory_is_the_callers_mistake_and_leaves_it_to_the_next(guest: Guest) -> None:
    create_ahead(guest).delete()
    spare = spare_of(guest)
    answer = guest.call("POST", "/v1/contexts", {"cwd": "/nonexistent"}, status=400)
    assert answer["details"]["errors"][0]["field"] == "cwd"
    assert "/nonexistent: No such file" in answer["message"]
    context = guest.create()
    assert pid_of(context) == spare
    context.delete()


def test_one_that_is_killed_is_missed_by_nobody(guest: Guest) -> None:
    create_ahead(guest).delete()
    spare = spare_of(guest)
    os.kill(spare, signal.SIGKILL)
    wait_for(lambda: not is_running(spare), "its end")
    context = guest.create()
    assert context.value("1 + 1") == "2"
    context.delete()
    create_ahead(guest).delete()


def test_modules_that_are_wanted_later_are_in_the_next_one(guest: Guest) -> None:
    create_ahead(guest).delete()
    spare = spare_of(guest)
    preload(guest, OF_TESTS)
    context = create_ahead(guest)
    assert context.value(f"import sys; {OF_TESTS!r} in sys.modules") == "True"
    assert not is_running(spare)
    context.delete()


def test_code_of_the_user_that_runs_at_the_start_runs_in_the_contexts_own_place(guest: Guest, tmp_path: Path) -> None:
    create_ahead(guest).delete()
    spare_of(guest)
    startup = guest.home / ".ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    file = startup / "own.py"
    file.write_text("import os; place = os.getcwd(), os.environ['MINE']")
    contexts = [guest.create(cwd=str(tmp_path), env={"MINE": "1"}) for _ in range(2)]
    assert [context.value("place") for context in contexts] == [repr((str(tmp_path), "1"))] * 2
    assert not any(started(context)["ahead"] for context in contexts)
    file.unlink()
    for context in contexts:
        context.delete()
    create_ahead(guest).delete()


def test_it_is_no_context_and_ends_with_all_others(guest: Guest) -> None:
    create_ahead(guest).delete()
    spare = spare_of(guest)
    contexts = guest.http.get("/v1/contexts")
    assert "spare" not in contexts.text
    assert len(contexts.json()["items"]) == guest.health()["contexts"] > 0
    assert "spare" not in guest.http.get("/v1/activity").text
    assert guest.http.post("/v1/end-all", json={}).status_code == 204
    assert not is_running(spare)
    guest.create()
    create_ahead(guest)


def test_what_ipython_and_jupyter_read_at_the_start_counts_too() -> None:
    assert differs_at_start({"A": "1"}, {"A": "2", "TZ": "x", "TMPDIR": "y"}) == []
    assert differs_at_start({"XDG_DATA_HOME": "1"}, {"IPYTHONDIR": "2", "PYTHONPATH": "3"}) == [
        "IPYTHONDIR",
        "PYTHONPATH",
        "XDG_DATA_HOME",
    ]


def warm_up(guest: Guest) -> dict[str, Any] | None:
    """The run; None when nothing could run."""
    answer = guest.http.post("/v1/warm-up", json={"code": "1"})
    assert answer.status_code in (200, 204)
    return dict(answer.json()) if answer.status_code == 200 else None


TRACES = """
shell = get_ipython()
sorted((name, repr(value)) for name, value in globals().items() if name.startswith('_')), In, Out, shell.execution_count, \
[str(each) for each in shell.user_ns_hidden if each.startswith('_')], shell.displayhook._, \
shell.history_manager._i00, shell.history_manager.db_input_cache, seen
"""
SET_UP = """
seen, shell = [], get_ipython()
shell.events.register('pre_run_cell', lambda info: seen.append(info.raw_cell[:5]))
shell.events.register('post_run_cell', lambda result: seen.append(result.success))
"""


@pytest.mark.parametrize("set_up", [[], [SET_UP, "40 + 2", "1 / 0"]], ids=["new", "used"])
def test_a_cell_that_warms_up_leaves_no_trace(guest: Guest, set_up: list[str]) -> None:
    warm, cold = guest.create(), guest.create()
    seen = []
    for context in (warm, cold):
        for code in ["seen = None", *set_up]:
            context.run(code)
        if context is warm:
            rehearsed = warm_up(guest)
            assert rehearsed is not None
            assert rehearsed["status"] == "ok"
            guest.call("GET", f"/v1/contexts/{rehearsed['context_id']}/runs/{rehearsed['id']}", status=404)
        run = context.ok(TRACES)
        assert context.info()["execution_count"] == run["execution_count"] == len(set_up) + 2
        seen.append(run["outputs"][-1]["data"]["text/plain"])
        assert {event["type"] for event in _journal(context)} == {
            "queued",
            "context_state",
            "kernel_started",
            "run_started",
            "run_finished",
        }
        context.delete()
    assert seen[0] == seen[1]


def test_warming_up_changes_no_environment_and_calls_no_hooks(guest: Guest) -> None:
    """It goes through what a claim does, too."""
    context = guest.create()
    context.ok("import cloche_sandbox, os\ncalled = []\nbefore = dict(os.environ)")
    warm_up(guest)
    context.ok("cloche_sandbox.on_restore(lambda *told: called.append(told))")
    warm_up(guest)
    assert context.value("called, dict(os.environ) == before") == "([], True)"
    context.delete()


def test_what_threads_print_while_it_warms_up_belongs_to_their_cell(guest: Guest, tmp_path: Path) -> None:
    context, end = guest.create(), tmp_path / "end"
    code = "def tick():\n    while not os.path.exists(end): os.write(1, b'tick '), time.sleep(0.001)\n    os.write(1, b'over')\n"
    code = f"import os, threading, time\nend = {str(end)!r}\n{code}threading.Thread(target=tick).start()"
    run_id = context.ok(code)["id"]
    for _ in range(3):
        warm_up(guest)
    end.touch()
    context.context_until("stdout", text="over", run_id=run_id)
    context.delete()


def test_a_context_that_runs_something_is_not_warmed_up_and_not_disturbed(guest: Guest) -> None:
    context = guest.create()
    run = context.submit("import time; time.sleep(600)")
    context.until(run, "started")
    rehearsed = warm_up(guest)
    assert rehearsed is None or rehearsed["context_id"] != context.id
    context.interrupt()
    assert context.wait(run)["status"] == "interrupted"
    context.delete()
