"""The whole way: SDK, server, guest, kernel, on every driver. One sandbox a driver for what does not end it."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator

import pytest

from cloche import Client, Context, RunStatus, Sandbox

from .server_process import ServerProcess

MEMORY_MB = 1024
PROCESSES = 128
DISK_MB = 128

FORK_BOMB = """
import subprocess
children = []
try:
    while True:
        children.append(subprocess.Popen(['sleep', '600']))
except OSError as error:
    print(type(error).__name__)
for child in children:
    child.kill()
    child.wait()
"""
# Not os.fork() of the kernel: under gVisor a hundred copies of it are out of memory before they are too many.

FILL_DISK = """
import os
written = 0
try:
    with open('/workspace/big', 'wb', buffering=0) as file:
        while written < 4 << 30:
            written += file.write(bytes(1 << 20))
except OSError as error:
    print(error.strerror)
os.unlink('/workspace/big')
print(written >> 20)
"""

OPEN_FILES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
files = [open('/dev/null') for _ in range(10_000)]
print(len(files))
"""

MEMORY_BOMBS = (
    "bytearray(16 << 30)",
    "import numpy; [numpy.ones(1_000_000) for _ in range(10_000)]",
    "x = []\nwhile True: x.append('x' * 100_000)",
)


@pytest.fixture(scope="module")
def connected(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url, server.key) as client:
        yield client


@pytest.fixture(scope="module", params=["gvisor", "runc"])
def sandbox(connected: Client, request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    limits = {"memory_mb": MEMORY_MB, "max_processes": PROCESSES, "disk_mb": DISK_MB}
    with Sandbox.create(client=connected, driver=request.param, resources=limits) as made:
        yield made


@pytest.fixture
def context(sandbox: Sandbox) -> Iterator[Context]:
    made = sandbox.contexts.create()
    yield made
    made.delete()


def output(run: Callable[..., object], code: str) -> list[str]:
    """Words printed by a cell that must not fail."""
    result = run(code, timeout_s=120)
    assert result.ok, result.run.failure or result.error  # type: ignore[attr-defined]
    return result.stdout.split()  # type: ignore[attr-defined, no-any-return]


def test_input_is_answered_while_the_cell_waits(sandbox: Sandbox) -> None:
    result = sandbox.run("print('hello', input('name? '))", allow_stdin=True, input=lambda prompt, _: prompt[:2])
    assert result.stdout.endswith("hello na\n")


def test_a_run_is_interrupted_and_its_variables_stay(context: Context) -> None:
    handle = context.start_run("x = 1\nprint('on', flush=True)\nwhile True: pass")
    next(event for event in handle.events() if event.type == "stdout")
    handle.interrupt()
    assert handle.wait(60).status is RunStatus.INTERRUPTED
    assert context.run("x").text == "1"


def test_a_timeout_ends_a_cell_and_the_next_one_runs(context: Context) -> None:
    context.run("x = 1")
    assert context.run("import asyncio; await asyncio.sleep(60)", timeout_s=0.5).status is RunStatus.TIMED_OUT
    assert context.run("x").text == "1"


@pytest.mark.parametrize("bomb", MEMORY_BOMBS)
def test_a_memory_bomb_ends_its_own_context_and_the_run_says_why(sandbox: Sandbox, context: Context, bomb: str) -> None:
    sandbox.run("kept = 'here'")
    result = context.run(bomb, timeout_s=120)
    assert result.status is RunStatus.FAILED
    assert result.run.failure is not None
    assert result.run.failure.reason == "out_of_memory"
    assert context.run("1").text == "1"
    assert sandbox.run("kept").text == "'here'"


def test_a_fork_bomb_meets_the_limit_and_the_sandbox_goes_on(sandbox: Sandbox, context: Context) -> None:
    assert output(context.run, FORK_BOMB) == ["BlockingIOError"]
    assert sandbox.run("2").text == "2"


def test_a_disk_filler_meets_the_limit_and_the_sandbox_goes_on(sandbox: Sandbox, context: Context) -> None:
    words = output(context.run, FILL_DISK)
    assert words[:-1] == ["No", "space", "left", "on", "device"]
    assert DISK_MB * 0.7 < int(words[-1]) <= DISK_MB
    assert sandbox.run("open('/workspace/small', 'w').write('x')").text == "1"


def test_ten_thousand_open_files_are_ordinary(context: Context) -> None:
    assert output(context.run, OPEN_FILES) == ["10000"]


def test_a_hundred_megabytes_printed_keep_head_and_tail_and_cost_the_client_little(context: Context) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = context.run("print('head'); print('x' * 100_000_000); print('tail')", timeout_s=120)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert result.stdout.startswith("head\n")
    assert result.stdout.endswith("tail\n")
    assert result.run.truncated is not None
    assert len(result.stdout) + result.run.truncated.bytes == 100_000_000 + len("head\n\ntail\n")
    assert after - before < 200 * 1024
    assert context.run("1").text == "1"


def test_code_is_the_user_and_sudo_is_root(sandbox: Sandbox) -> None:
    code = "import subprocess as s\nfor c in ('id -u', 'sudo id -u', 'sudo -u user id -u'): s.run(c, shell=True)"
    assert output(sandbox.run, code) == ["1000", "0", "1000"]


def test_without_sudo_there_is_no_way_to_become_root(connected: Client, sandbox: Sandbox) -> None:
    with Sandbox.create(client=connected, driver=sandbox.info.driver, sudo=False) as made:
        code = (
            "import subprocess as s; p = s.run(['sudo', 'id'], capture_output=True, text=True); p.returncode, p.stderr"
        )
        assert made.run(code).text == "(1, 'sudo: this sandbox was created without sudo\\n')"


def test_the_network_is_loopback_alone_and_that_works(sandbox: Sandbox) -> None:
    code = """
import socket
listener = socket.create_server(('127.0.0.1', 0))
socket.create_connection(listener.getsockname()).close()
print('loopback')
try:
    socket.create_connection(('198.51.100.1', 80), timeout=5)
except OSError as error:
    print(type(error).__name__ in ('OSError', 'TimeoutError', 'ConnectionRefusedError'))
print([name for _, name in socket.if_nameindex()])
"""
    assert output(sandbox.run, code) == ["loopback", "True", "['lo']"]
