"""What a kernel imports only when it is used works then as it always did."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from guest_process import Context, Guest, wait_for

from cloche_guest.kernel_side._late_package import postpone

ASK_THE_DEBUGGER = """
import sys, threading
from jupyter_client import BlockingKernelClient
from ipykernel.connect import get_connection_file

replies = {"debugpy before": "debugpy" in sys.modules}

def ask(*commands):
    client = BlockingKernelClient(connection_file=get_connection_file())
    client.load_connection_file()
    client.start_channels(shell=False, iopub=False, stdin=False, hb=False, control=True)
    for command in commands:
        content = {"type": "request", "seq": 1, "command": command, "arguments": {}}
        client.control_channel.send(client.session.msg("debug_request", content))
        replies[command] = client.control_channel.get_msg(timeout=60)["content"]
    client.stop_channels()

# In a thread: it starts with code that waits for its turn, as cells do.
asking = threading.Thread(target=ask, args=("debugInfo", "initialize", "inspectVariables"))
asking.start()
"""


def test_the_debugger_is_loaded_when_it_is_asked(context: Context) -> None:
    context.ok(ASK_THE_DEBUGGER)
    wait_for(lambda: context.value("asking.is_alive()") == "False", "the debugger's answers")
    assert context.value("replies['debugpy before']") == "False"
    assert context.value("[reply['success'] for reply in replies.values() if reply]") == "[True, True, True]"
    names = "[variable['name'] for variable in replies['inspectVariables']['body']['variables']]"
    assert context.value(f"'asking' in {names}") == "True"


def test_the_debugger_can_be_imported_in_a_cell(context: Context) -> None:
    assert context.value("import debugpy, sys; debugpy.is_client_connected()") == "False"


def test_a_kernel_says_that_it_can_be_debugged(context: Context) -> None:
    assert context.value("'debugger' in get_ipython().kernel.kernel_info['supported_features']") == "True"


def test_a_kernel_has_not_imported_what_nobody_uses(context: Context) -> None:
    asked = "debugpy", "pydevd", "jupyter_client.manager", "jedi", "sqlite3", "unittest"
    assert context.value(f"import sys; [name for name in {asked} if name in sys.modules]") == "[]"


def test_all_of_jupyter_client_is_there_for_a_cell(context: Context) -> None:
    code = "import jupyter_client; jupyter_client.KernelManager.__name__, jupyter_client.__version__[:1].isdigit()"
    assert context.value(code) == "('KernelManager', True)"
    assert context.value("type(jupyter_client)") == "module"


OWN = ("asttokens", "debugpy", "executing", "jedi", "parso", "pexpect", "ptyprocess", "pure_eval", "stack_data")


def test_files_of_the_user_are_not_taken_for_packages_of_the_kernel(guest: Guest, tmp_path: Path) -> None:
    """Completion ran a `jedi.py` of the working directory; one that calls `sys.exit` ended the thread of all questions."""
    for name in (*OWN, "mine"):
        (tmp_path / f"{name}.py").write_text(f"open('ran', 'a').write('{name} ')\nraise SystemExit(3)")
    context = guest.create(cwd=str(tmp_path))
    completed = guest.call("POST", f"{context.path}/complete", {"code": "impo"})
    assert "import" in completed["matches"]
    assert context.run("1 / 0")["error"]["name"] == "ZeroDivisionError"
    assert context.run("!true")["status"] == "ok"
    context.ok(ASK_THE_DEBUGGER)
    wait_for(lambda: context.value("asking.is_alive()") == "False", "the debugger's answers")
    assert context.value("[reply['success'] for reply in replies.values() if reply]") == "[True, True, True]"
    assert not (tmp_path / "ran").exists()
    assert context.run("import mine")["error"]["name"] == "SystemExit"
    assert (tmp_path / "ran").read_text() == "mine "


def test_tracebacks_and_completion_do_without_sys_path(context: Context) -> None:
    context.ok("import sys; sys.path.clear()")
    error = context.run("1 / 0")["error"]
    assert error["name"] == "ZeroDivisionError"
    assert "ModuleNotFoundError" not in "".join(error["traceback"])


def test_a_late_package_whose_code_was_interrupted_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_one.py").write_text("import late_switch\nlate_switch.pull()\nvalue = 7\n")
    (tmp_path / "late_switch.py").write_text("def pull(): raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    postpone("late_one")
    package = importlib.import_module("late_one")
    with pytest.raises(KeyboardInterrupt):
        _ = package.value
    importlib.import_module("late_switch").pull = lambda: None
    assert package.value == 7
    for name in ("late_one", "late_switch"):
        del sys.modules[name]
