"""What a run answers. Each test names the report of another system that it shows us doing right.

"2.3" is the list of verified defects of Cloudflare's code interpreter (behaviour.md); "J" the table and the issues of
jupyter.md; other numbers are issues of the named project.
"""

from __future__ import annotations

import json

import pytest
from guest_process import Context, Guest, result, text


def outputs_of(run: dict[str, object], kind: str) -> list[dict[str, object]]:
    outputs = run["outputs"]
    assert isinstance(outputs, list)
    return [output for output in outputs if output["type"] == kind]


def test_a_syntax_error_is_an_error(shared: Context) -> None:
    """2.3: a syntax error was reported as success with the message in stdout."""
    run = shared.run("def broken(:")
    assert run["status"] == "error"
    assert run["error"]["name"] == "SyntaxError"
    assert text(run) == ""


def test_a_value_is_a_result_and_nothing_else(shared: Context) -> None:
    """2.3: the value came twice, as a result and as ``Out[1]: ...`` in stdout."""
    run = shared.ok("6 * 7")
    assert [output["type"] for output in run["outputs"]] == ["result"]
    assert result(run) == "42"


def test_the_execution_count_counts(shared: Context) -> None:
    """2.3: the counter was always 1."""
    first, second = shared.ok("'a'"), shared.ok("'b'")
    assert second["execution_count"] == first["execution_count"] + 1
    assert outputs_of(second, "result")[0]["execution_count"] == second["execution_count"]
    assert shared.info()["execution_count"] == second["execution_count"]


def test_an_exception_has_a_traceback_without_colours(shared: Context) -> None:
    """2.3: the traceback, with ANSI colours, was in stdout too."""
    run = shared.run("def f(): raise ValueError('no')\nf()")
    assert (run["error"]["name"], run["error"]["value"]) == ("ValueError", "no")
    assert any("f()" in line for line in run["error"]["traceback"])
    assert "\x1b" not in json.dumps(run)
    assert text(run) == text(run, "stderr") == ""
    assert outputs_of(run, "error")[0]["value"] == "no"


def test_a_failed_run_is_completed(shared: Context) -> None:
    """2.3: a failed run sent an error event and no completion event."""
    run_id = shared.submit("1/0")
    kinds = [event["type"] for event in shared.events(run_id)]
    assert kinds == ["started", "error", "finished"]


def test_writes_to_descriptors_and_children_are_output(shared: Context) -> None:
    """2.3: a child process or a write to fd 1 broke the protocol, and the client hung."""
    code = "import os, subprocess\nos.write(1, b'fd\\n')\nsubprocess.run(['echo', 'child'])\nos.system('echo err >&2')"
    run = shared.ok(code + "\nprint('end')")
    assert text(run) == "fd\nchild\nend\n"
    assert text(run, "stderr") == "err\n"


def test_prints_stay_behind_what_a_finished_child_wrote_before(shared: Context) -> None:
    """The pipes are read by a thread of their own, which a print must not overtake."""
    code = "import subprocess\nfor n in range(60):\n  _ = subprocess.run(['echo', f'child {n}'])\n  print('print', n)"
    expected = "".join(f"child {n}\nprint {n}\n" for n in range(60))
    assert text(shared.ok(code)) == expected


def test_output_of_a_child_given_our_stdout_is_captured(shared: Context) -> None:
    """``subprocess.run(..., stdout=sys.stdout)`` writes past a stock kernel's capture."""
    run = shared.ok(
        "import subprocess, sys\n_ = subprocess.run(['echo', 'seen'], stdout=sys.stdout, stderr=sys.stderr)"
    )
    assert text(run) == "seen\n"


def test_stdout_and_stderr_keep_their_order(shared: Context) -> None:
    """J: separate buffers swap a, b(err), c to "a c" and "b"."""
    run = shared.ok("import sys\nprint('a')\nprint('b', file=sys.stderr)\nprint('c')")
    assert [(output["type"], output["text"]) for output in run["outputs"]] == [
        ("stdout", "a\n"),
        ("stderr", "b\n"),
        ("stdout", "c\n"),
    ]


def test_the_first_cell_has_no_noise(context: Context) -> None:
    """J: four lines of debugger warnings were in the first cell's stderr."""
    assert text(context.ok("1"), "stderr") == ""


def test_values_that_are_no_json_are_shown(shared: Context) -> None:
    """2.3: a list or dict with a value that is not JSON made the run fail with a TypeError."""
    run = shared.ok("{'a': object, 'b': [complex(1, 2), {1, 2}]}")
    assert "complex" not in run["status"]
    assert "(1+2j)" in result(run)


def test_not_a_number_in_json_output_survives(shared: Context) -> None:
    """J: NaN in application/json; JSON forbids it, Python writes it."""
    run = shared.ok("from IPython.display import JSON, display\ndisplay(JSON({'x': float('nan')}))")
    assert outputs_of(run, "display")[0]["data"]["application/json"] == {"x": "nan"}  # type: ignore[index]


@pytest.mark.parametrize("code", ["import sys; sys.exit(3)", "exit", "exit()", "quit()", "raise SystemExit"])
def test_leaving_ends_the_cell_and_not_the_kernel(shared: Context, code: str) -> None:
    """2.3 (good there): sys.exit() is an error and the kernel survives. In a notebook exit ends the kernel."""
    generation = shared.info()["generation"]
    shared.ok("kept = 'still here'")
    run = shared.run(code)
    assert (run["status"], run["error"]["name"]) == ("error", "SystemExit")
    assert text(run, "stderr") == ""
    assert shared.value("kept") == "'still here'"
    assert shared.info()["generation"] == generation


def test_top_level_await_works(shared: Context) -> None:
    """sandbox-sdk#206, #246, #261."""
    assert shared.value("import asyncio\nawait asyncio.sleep(0, 'done')") == "'done'"


def test_an_object_with_many_representations_is_one_result(shared: Context) -> None:
    """2.3: a DataFrame became two results."""
    code = "class Table:\n  def _repr_html_(self): return '<table>'\n  def __repr__(self): return 'table'\nTable()"
    run = shared.ok(code)
    assert len(run["outputs"]) == 1
    assert run["outputs"][0]["data"] == {"text/plain": "table", "text/html": "<table>"}


def test_a_figure_is_not_shown_again_by_the_next_run(shared: Context) -> None:
    """llm-sandbox#104: plots of the previous run were returned again."""
    first = shared.ok("from IPython.display import Image, display\ndisplay({'image/png': 'aGk='}, raw=True)")
    assert outputs_of(first, "display")[0]["data"] == {"image/png": "aGk="}
    assert shared.ok("None")["outputs"] == []


def test_a_formatter_that_raises_makes_an_error(shared: Context) -> None:
    """J: 7.x marks a cell failed when a formatter raises; the run must say so and the kernel go on."""
    run = shared.run("class Bad:\n  def __repr__(self): raise RuntimeError('cannot show')\nBad()")
    assert run["status"] == "error"
    assert run["error"]["value"] == "cannot show"
    assert shared.value("1") == "1"


def test_help_is_shown(shared: Context) -> None:
    """J: ``len?`` answers by a page payload in the reply, which most services drop."""
    run = shared.ok("len?")
    assert "Return the number of items" in outputs_of(run, "display")[0]["data"]["text/plain"]  # type: ignore[index]


def test_stdin_is_at_its_end(shared: Context) -> None:
    """J: jupyter_client gives the kernel an open pipe as stdin; cat in a cell hung. sandbox-sdk#141."""
    run = shared.ok("import subprocess, sys\nprint(repr(sys.stdin.read()))\n_ = subprocess.run('cat', timeout=50)")
    assert text(run) == "''\n"


def test_events_come_while_the_code_runs(shared: Context) -> None:
    """2.3: the "stream" sent all events after completion."""
    run_id = shared.submit("print('before')\nwhile not globals().get('never'): import time; time.sleep(0.01)")
    shared.until(run_id, "stdout", text="before\n")
    assert shared.get(run_id)["state"] == "running"
    shared.interrupt(run_id)
    assert shared.wait(run_id)["status"] == "interrupted"


def test_clear_output_clears(shared: Context) -> None:
    run = shared.ok("from IPython.display import clear_output\nprint('a')\nclear_output()\nprint('b')")
    assert [output["text"] for output in run["outputs"]] == ["b\n"]


def test_clear_output_with_wait_waits_for_the_next_output(shared: Context) -> None:
    """positron#10459, nbconvert PR#969: clear_output(wait=True) wrong."""
    code = "from IPython.display import clear_output\nprint('a')\nclear_output(wait=True)"
    assert text(shared.ok(code)) == "a\n"
    assert text(shared.ok(code + "\nprint('b')")) == "b\n"


def test_text_stays_behind_what_was_shown_before_it(shared: Context) -> None:
    """A flush that was queued before both must not take the text along, however late it comes to its turn."""
    run = shared.ok(
        "import sys, threading\n"
        "from IPython.display import clear_output\n"
        "go, publishing = threading.Event(), get_ipython().kernel.iopub_thread\n"
        "print('a', flush=True)\n"
        "publishing.schedule(go.wait)\n"
        "publishing.schedule(sys.stdout._flush)\n"
        "clear_output(wait=True)\n"
        "print('b')\n"
        "go.set()"
    )
    assert text(run) == "b\n"


def test_an_update_changes_the_display_of_an_earlier_run(shared: Context) -> None:
    """nteract#1447: update_display_data must touch all outputs of that id, in whatever cell they are."""
    one = shared.ok("h = display('one', display_id=True)\ndisplay('copy', display_id=h.display_id)")
    two = shared.ok("display('again', display_id=h.display_id)")
    update = shared.ok("h.update('new')")
    for run_id, count in ((one["id"], 2), (two["id"], 1)):
        shown = outputs_of(shared.get(run_id), "display")
        assert [output["data"]["text/plain"] for output in shown] == ["'new'"] * count  # type: ignore[index]
        shared.context_until("update_display", run_id=run_id)
    assert update["outputs"] == []


def test_an_update_in_the_same_run_changes_it_there(shared: Context) -> None:
    run = shared.ok("h = display('one', display_id='same')\nprint('x')\nh.update('two')")
    assert [output["type"] for output in run["outputs"]] == ["display", "stdout"]
    assert run["outputs"][0]["data"]["text/plain"] == "'two'"


def test_environment_of_one_run_is_put_back(shared: Context) -> None:
    """2.3: per-run env never left the client. sandbox-sdk#144."""
    shared.ok("import os\nos.environ['KEEP'] = 'mine'")
    code = "import subprocess\n(os.environ['KEEP'], os.environ['ONE'], subprocess.getoutput('echo $ONE'))"
    assert shared.value(code, env={"KEEP": "theirs", "ONE": "1"}) == "('theirs', '1', '1')"
    assert shared.value("(os.environ['KEEP'], os.environ.get('ONE'))") == "('mine', None)"


def test_environment_of_a_failed_run_is_put_back(shared: Context) -> None:
    assert shared.run("1/0", env={"FAILED": "1"})["status"] == "error"
    assert shared.value("import os; 'FAILED' in os.environ") == "False"


def test_environment_of_a_run_shows_in_no_name_and_no_history(shared: Context) -> None:
    before = set(shared.variables())
    shared.ok("pass", env={"SECRET": "hidden"})
    assert set(shared.variables()) == before
    assert "hidden" not in json.dumps(shared.guest.call("GET", f"{shared.path}/history?limit=5"))


def test_cwd_and_env_of_a_context_are_used(guest: Guest) -> None:
    """2.3: cwd and envVars of a context were ignored."""
    directory = guest.home / "its own"
    directory.mkdir()
    context = guest.create(cwd=str(directory), env={"WHO": "me"}, name="mine")
    try:
        assert context.value("import os; (os.getcwd(), os.environ['WHO'])") == repr((str(directory), "me"))
        assert context.info()["env"] == ["WHO"]
        assert context.info()["name"] == "mine"
    finally:
        context.delete()


def test_without_env_a_context_has_none_of_another(context: Context) -> None:
    assert context.value("import os; 'WHO' in os.environ") == "False"


def test_history_tells_what_ran(context: Context) -> None:
    first = context.ok("1 + 1")
    context.ok("2 + 2", store_history=False)
    context.run("1/0")
    entries = context.guest.call("GET", f"{context.path}/history")["entries"]
    assert [entry["code"] for entry in entries] == ["1 + 1", "1/0"]
    assert entries[0]["run_id"] == first["id"]
    assert entries[0]["execution_count"] == first["execution_count"]
    newest = context.guest.call("GET", f"{context.path}/history?limit=1")["entries"]
    assert [entry["code"] for entry in newest] == ["1/0"]


def test_a_run_has_times_that_make_sense(shared: Context) -> None:
    """2.3: lists showed a wrong creation time."""
    run = shared.ok("import time; time.sleep(0.05)")
    assert run["created_at"] <= run["started_at"] <= run["finished_at"]
    assert 0.05 <= run["duration_s"] < 60


def test_a_repeated_post_runs_nothing_twice(shared: Context) -> None:
    shared.ok("calls = 0")
    body = {"code": "calls += 1", "id": "run-abcdefabcdef"}
    first = shared.guest.call("POST", f"{shared.path}/runs", body)
    second = shared.guest.call("POST", f"{shared.path}/runs", body)
    assert first["id"] == second["id"] == "run-abcdefabcdef"
    assert shared.value("calls") == "1"
    error = shared.guest.call("POST", f"{shared.path}/runs", {**body, "code": "calls += 2"}, status=409)
    assert error["code"] == "conflict"
    assert error["details"] == {"kind": "run", "id": "run-abcdefabcdef"}


def test_old_runs_are_gone_and_say_by_which_bound(context: Context) -> None:
    oldest = context.ok("'first'", id="run-000000000000")["id"]
    for _ in range(100):
        context.submit("None")
    context.ok("None")
    error = context.guest.call("GET", f"{context.path}/runs/{oldest}", status=410)
    assert error["code"] == "gone"
    assert error["details"]["limit"] == 100
    assert len(context.guest.call("GET", f"{context.path}/runs")["runs"]) == 100
    again = context.guest.call("POST", f"{context.path}/runs", {"code": "'first'", "id": oldest}, status=410)
    assert again["code"] == "gone"


def test_a_display_over_the_limit_is_replaced_by_a_note(shared: Context) -> None:
    run = shared.ok("display({'text/html': 'x' * 17_000_000, 'text/plain': 'small'}, raw=True)")
    note = run["outputs"][0]["data"]["application/vnd.cloche.truncated+json"]
    assert note["bytes"] > note["limit_bytes"] == 16 * 1024 * 1024
    assert note["types"]["text/html"] > 17_000_000
    assert shared.value("1") == "1"


def test_lone_surrogates_do_not_break_anything(shared: Context) -> None:
    run = shared.ok("print('\\ud800 ok')\n'\\udc80'")
    assert text(run) == "\\ud800 ok\n"


def test_text_may_have_any_character(shared: Context) -> None:
    """A NUL made the outputs of a run a failure of the guest: what processes write may be no text, what a cell prints is."""
    run = shared.ok("print('a\\0b', '\\ud800', '\U0001f600')")
    assert run["outputs"] == [{"type": "stdout", "text": "a\0b \\ud800 \U0001f600\n"}]
    told = "".join(event["data"]["text"] for event in shared.events(run["id"]) if event["type"] == "stdout")
    assert told == run["outputs"][0]["text"]
