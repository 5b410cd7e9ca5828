"""The script as a process: signals, pipes, terminals."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from protocol_app import KEY, App, Fault, Server

from cloche.models import SandboxState

SMALL_PIPE_BYTES = 4096
"""The least that Linux makes; a pipe holds 64 KiB otherwise."""

COMMAND = [sys.executable, "-c", "from cloche.cli import main; main()"]


@pytest.fixture
def environ(server: Server) -> dict[str, str]:
    return {**os.environ, "CLOCHE_URL": server.url, "CLOCHE_API_KEY": KEY}


def start(environ: dict[str, str], *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments], env=environ, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True
    )


def wait_for_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == line


def only_state(app: App) -> SandboxState:
    (made,) = app.sandboxes.values()
    return made.state


def test_ctrl_c_interrupts_the_run_and_tidies_up(environ: dict[str, str], app: App) -> None:
    process = start(environ, "run", "-c", "print started\nhang")
    wait_for_line(process, "started\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert "interrupting" in err
    assert "KeyboardInterrupt" in err
    assert "Traceback" not in err
    assert only_state(app) is SandboxState.DELETED


def test_ctrl_c_twice_leaves(environ: dict[str, str], app: App, server: Server) -> None:
    process = start(environ, "run", "-c", "print started\nhang")
    wait_for_line(process, "started\n")
    app.faults.append(Fault("silent", "POST", "/interrupt"))
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "again leaves" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert only_state(app) is SandboxState.DELETED


def test_ctrl_c_while_the_sandbox_is_made_leaves_none(environ: dict[str, str], app: App) -> None:
    app.faults.append(Fault("late", "POST", "/sandboxes"))
    process = start(environ, "run", "-c", "1+1")
    while not app.sandboxes:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "on its way" in err
    assert only_state(app) is SandboxState.DELETED


def test_a_closed_pipe_is_one_line_and_tidies_up(environ: dict[str, str], app: App) -> None:
    ours, theirs = os.pipe()
    fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, SMALL_PIPE_BYTES)
    process = start(
        environ, "run", "-c", "flood 4000", stdout=theirs
    )  # it cannot have written all of it before the end
    os.close(theirs)
    assert process.stderr is not None
    assert os.read(ours, 2) == b"0\n"
    os.close(ours)
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 3
    assert err == "cloche: standard output was closed before everything was written\n"
    assert only_state(app) is SandboxState.DELETED


def test_output_streams_while_the_code_runs(environ: dict[str, str], app: App) -> None:
    process = start(environ, "run", "-c", "print first\nhang")
    wait_for_line(process, "first\n")  # it hangs still: this came while it ran
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def on_a_terminal(environ: dict[str, str], *arguments: str, typed: bytes = b"") -> str:
    """Run with a terminal as standard input, output and error."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, *arguments], env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    if typed:
        os.write(ours, typed)
    seen = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # EIO: the other end is closed
            break
    os.close(ours)
    assert process.wait(60) is not None
    return seen.decode()


def test_a_terminal_is_protected_from_the_code(environ: dict[str, str]) -> None:
    seen = on_a_terminal(environ, "run", "-c", "print \x1b]52;c;ZXZpbA==\x07\x1b[31mred\x1b[6n")
    assert "\x1b[31mred" in seen
    assert "]52;" not in seen
    assert "\x1b[6n" not in seen


def test_the_code_may_ask_a_terminal_for_input(environ: dict[str, str]) -> None:
    seen = on_a_terminal(environ, "run", "-c", "input name? ", typed=b"Ada\n")
    assert "name?" in seen
    assert "read Ada" in seen


def test_help_loads_neither_server_nor_http_nor_rich() -> None:
    code = (
        "import sys\nfrom cloche.cli._app import cloche\n"
        "try: cloche.main(['--help'], standalone_mode=False)\nexcept SystemExit: pass\n"
        "sys.exit(str({'httpx', 'rich', 'tornado', 'cloche_server'} & set(sys.modules) or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_commands_and_names_are_completed(environ: dict[str, str], server: Server) -> None:
    from cloche import Client, Sandbox

    with Client(server.url, KEY) as client:
        Sandbox.create(client=client, name="my-box").snapshot("saved")
        client.templates.create("data")
        client.pools.put("warm", template="data")
        client.volumes.create("disk")
    completing = {**environ, "_CLOCHE_COMPLETE": "bash_complete"}

    def complete(words: str, at: int) -> str:
        process = start({**completing, "COMP_WORDS": words, "COMP_CWORD": str(at)})
        return process.communicate(timeout=60)[0]

    assert complete("cloche co", 1).split() == ["plain,contexts", "plain,compare", "plain,completion"]
    assert complete("cloche show my", 2).split() == ["plain,my-box"]
    assert complete("cloche restore my-box s", 3).split() == ["plain,saved"]
    assert complete("cloche templates rm d", 3).split() == ["plain,data@1"]
    assert complete("cloche pools show w", 3).split() == ["plain,warm"]
    assert complete("cloche volumes show d", 3).split() == ["plain,disk"]
