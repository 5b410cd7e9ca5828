"""What a kernel imports only when it is used works then as it always did."""

from __future__ import annotations

from guest_process import Context, wait_for

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
        replies[command] = client.control_channel.get_msg(timeout=30)["content"]
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
