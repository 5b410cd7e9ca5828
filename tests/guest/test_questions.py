"""Complete, inspect and variables: also while a run is busy, and without running code of the user."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from guest_process import Context


@pytest.fixture
def busy(context: Context) -> Iterator[Context]:
    """A context with a few names, in the middle of a run."""
    context.ok("import math\nnumbers = [1, 2, 3]\ntext = 'x' * 300")
    run_id = context.submit("print('go')\nimport time\nwhile True: time.sleep(0.01)")
    context.until(run_id, "stdout")
    yield context
    assert context.get(run_id)["state"] == "running"
    context.interrupt(run_id)


def test_questions_are_answered_while_a_run_is_busy(busy: Context) -> None:
    """J: completion and inspection queue on shell behind the cell; vscode-jupyter#8414."""
    asked = time.monotonic()
    reply = busy.guest.call("POST", f"{busy.path}/complete", {"code": "math.sq"})
    assert "math.sqrt" in reply["matches"] or "sqrt" in reply["matches"]
    assert (reply["cursor_start"], reply["cursor_end"]) in ((0, 7), (5, 7))
    assert len(reply["types"]) == len(reply["matches"])
    inspected = busy.guest.call("POST", f"{busy.path}/inspect", {"code": "math.sqrt", "cursor_pos": 6})
    assert inspected["found"]
    assert "square root" in inspected["data"]["text/plain"]
    assert busy.variables()["numbers"]["length"] == 3
    assert time.monotonic() - asked < 30


def test_inspecting_nothing_finds_nothing(shared: Context) -> None:
    reply = shared.guest.call("POST", f"{shared.path}/inspect", {"code": "no_such_name"})
    assert reply == {"found": False, "data": {}}


def test_variables_have_type_length_size_and_summary(busy: Context) -> None:
    variables = busy.variables()
    assert variables["numbers"] == {
        "name": "numbers",
        "type": "list",
        "shape": None,
        "length": 3,
        "dtype": None,
        "size_bytes": variables["numbers"]["size_bytes"],
        "summary": "[1, 2, 3]",
    }
    assert variables["numbers"]["size_bytes"] > 50
    assert len(variables["text"]["summary"]) == 200
    assert variables["math"]["summary"] == "<module math>"
    assert not any(name.startswith("_") or name in ("In", "Out", "exit", "get_ipython") for name in variables)


def test_listing_variables_runs_no_code_of_the_user(context: Context) -> None:
    """A repr that never returns, a length that prints, a property that counts: none is called."""
    code = """
class Trap:
    calls = 0
    def __repr__(self):
        while True: pass
    def __len__(self): Trap.calls += 1; return 1
    def __sizeof__(self): Trap.calls += 1; return 1
    @property
    def shape(self): Trap.calls += 1; return (1,)
    def __getattribute__(self, name): Trap.calls += 1; return object.__getattribute__(self, name)
class Words(list):
    def __len__(self): Trap.calls += 1; return 99
trap, words, nested = Trap(), Words('ab'), [Trap()]
"""
    context.ok(code)
    variables = context.variables()
    assert variables["trap"]["summary"] == "<__main__.Trap>, repr not run"
    assert variables["trap"]["shape"] is None
    assert variables["words"]["length"] == 2
    assert variables["nested"]["summary"] == "[<__main__.Trap>]"
    assert context.value("Trap.calls") == "0"


def test_a_completion_that_hangs_stops_no_other_question(context: Context) -> None:
    code = """
import threading
class Hang:
    def __dir__(self):
        print('asked')
        threading.Event().wait()
hang = Hang()
"""
    context.ok(code)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(context.guest.call, "POST", f"{context.path}/complete", {"code": "hang."}, status=408)
        context.context_until("stdout", text="asked\n")
        assert "hang" in context.variables()
        assert context.value("1") == "1"
        context.delete()
    assert answer.result()["code"] == "wait_timeout"
    assert answer.result()["details"]["bound_s"] == 10


def test_a_thousand_variables_are_listed_and_more_are_said(context: Context) -> None:
    context.ok("for i in range(1200): globals()[f'v{i:04}'] = i")
    answer = context.guest.call("GET", f"{context.path}/variables")
    assert len(answer["variables"]) == 1000
    assert answer["truncated"] is True


def test_text_that_is_hardly_code_has_no_completions(shared: Context) -> None:
    """IPython's completer raises here ("not enough values to unpack"): found by schemathesis, answered 502 then."""
    reply = shared.guest.call("POST", f"{shared.path}/complete", {"code": "\x85k\x1càR", "cursor_pos": 1})
    assert reply["matches"] == []
    assert "abs" in shared.guest.call("POST", f"{shared.path}/complete", {"code": "ab"})["matches"]
