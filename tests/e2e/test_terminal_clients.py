"""SDK and command line with terminals of real sandboxes, over a network that breaks."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from cloche import AsyncClient, AsyncSandbox, Client, NotFound, Sandbox, TerminalEnded, WaitTimeout

from .cuttable import Cuttable
from .server_process import ServerProcess


@pytest.fixture(scope="module")
def network(server: ServerProcess) -> Iterator[Cuttable]:
    with Cuttable(server.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def sandbox(server: ServerProcess, network: Cuttable) -> Iterator[Sandbox]:
    with (
        Client(f"http://127.0.0.1:{network.port}", server.key) as client,
        Sandbox.create(client=client, driver="runc") as made,
    ):
        yield made


def test_send_and_expect(sandbox: Sandbox) -> None:
    terminal = sandbox.terminals.create(command=["python3", "-q"], cols=100, rows=30)
    with terminal.attach() as shell:
        shell.expect(">>> ")
        shell.send("6 * 7\n")
        assert shell.expect(r"\r\n(\d+)\r\n")[1] == "42"
        shell.resize(120, 40)
        shell.send("import os; print(os.get_terminal_size().columns)\n")
        shell.expect(r"\n120\r\n")
        with pytest.raises(WaitTimeout):
            shell.expect("never", timeout_s=0.2)
        shell.send("exit()\n")
        with pytest.raises(TerminalEnded) as caught:
            shell.expect("never")
        assert caught.value.exit is not None
        assert caught.value.exit.code == 0
        assert shell.wait().code == 0
    assert terminal.refresh().state == "exited"
    assert terminal.recording().startswith(b'{"version": 2')
    assert terminal.id in [other.id for other in sandbox.terminals.list()]
    terminal.delete()


def test_an_attachment_comes_back_by_itself(sandbox: Sandbox, network: Cuttable) -> None:
    program = (
        "stty raw -echo; i=0; while [ $i -lt 1500 ]; do echo line $i; i=$((i+1)); done; read x; echo got $x; read y"
    )
    terminal = sandbox.terminals.create(command=["sh", "-c", program], record=False)
    with terminal.attach() as shell:
        received = bytearray()
        while not received.endswith(b"line 1499\n"):
            received += shell.read(60)
            network.cut()
        assert received == b"".join(b"line %d\n" % i for i in range(1500))
        assert shell.gaps == []
        network.cut()
        shell.send("ok\n")
        shell.expect("got ok")
    terminal.delete()


async def test_the_async_twin(server: ServerProcess, sandbox: Sandbox, network: Cuttable) -> None:
    async with (
        AsyncClient(f"http://127.0.0.1:{network.port}", server.key) as client,
        AsyncSandbox.connect(sandbox.id, client=client) as place,
    ):
        terminal = await place.terminals.create(command=["cat"])
        async with terminal.attach() as shell:
            await shell.send("hello\n")
            await shell.expect("hello\r\nhello")
            network.cut()
            await shell.send("again\n")
            await shell.expect("again\r\nagain")
            await shell.send(b"\x04")
            assert (await shell.wait(60)).code == 0
        await terminal.delete()


class Screen:
    """``cloche shell``, or another command, on a PTY of our own. `end` it; what a failed test leaves is ended by a fixture."""

    shown: ClassVar[list[Screen]] = []

    def __init__(self, *arguments: str, command: str = "shell", **environ: str) -> None:
        self.master, slave = pty.openpty()
        words = [str(Path(sys.executable).with_name("cloche")), command, *arguments]
        self.process = subprocess.Popen(
            words, stdin=slave, stdout=slave, stderr=slave, env=os.environ | environ, start_new_session=True
        )
        os.close(slave)
        self.said = b""
        self.shown.append(self)

    def until(self, pattern: bytes, timeout_s: float = 60) -> bytes:
        end = time.monotonic() + timeout_s
        while not (found := re.search(pattern, self.said, re.S)):
            left = end - time.monotonic()
            assert left > 0, f"no {pattern!r} in {self.said!r}"
            if select.select([self.master], [], [], left)[0]:
                self.said += self._read(pattern)
        seen, self.said = self.said, self.said[found.end() :]
        return seen

    def _read(self, wanted: bytes) -> bytes:
        try:
            return os.read(self.master, 65536)
        except OSError as error:  # nobody has the other side any more
            raise AssertionError(f"ended without {wanted!r} in {self.said!r}") from error

    def type(self, text: bytes) -> None:
        os.write(self.master, text)

    def resize(self, cols: int, rows: int) -> None:
        termios.tcsetwinsize(self.master, (rows, cols))
        self.process.send_signal(signal.SIGWINCH)  # the PTY is not its controlling terminal

    def end(self) -> int:
        code = self.process.wait(60)
        self.release()
        return code

    def release(self) -> None:
        os.close(self.master)
        self.shown.remove(self)


@pytest.fixture(autouse=True)
def _no_screen_is_left() -> Iterator[None]:
    yield
    for screen in list(Screen.shown):
        screen.process.kill()
        screen.process.wait()
        screen.release()


@pytest.fixture
def environ(server: ServerProcess, network: Cuttable) -> dict[str, str]:
    return {"CLOCHE_URL": f"http://127.0.0.1:{network.port}", "CLOCHE_API_KEY": server.key}


def test_cloche_shell_survives_the_network_and_gives_the_exit_code(
    sandbox: Sandbox, network: Cuttable, environ: dict[str, str]
) -> None:
    screen = Screen(sandbox.id, **environ)
    screen.until(rb"\$ ")
    screen.type(b"echo $((6*7))\r")
    screen.until(rb"[\r\n]42\r\n.*\$ ")
    screen.type(b"printf '\\033]52;c;ZXZpbA==\\007\\033[6nsafe\\n'\r")
    said = screen.until(rb"[\r\n]safe\r\n.*\$ ")
    assert b"\x1b]52" not in said
    assert b"\x1b[6n" not in said
    network.away = True
    network.cut()
    screen.until(rb"connection lost")
    screen.type(b"echo typed while away\r")
    network.away = False
    screen.until(rb"connected again")
    screen.until(rb"[\r\n]typed while away\r\n")
    screen.type(b"exit 7\r")
    screen.until(rb"exit\r\n")
    assert screen.end() == 7


def test_cloche_shell_can_be_left_and_come_back_to(sandbox: Sandbox, environ: dict[str, str]) -> None:
    screen = Screen(sandbox.id, "--", "sh", "-c", "echo ready; exec cat", **environ)
    screen.until(rb"ready\r\n")
    screen.type(b"still here\r")
    screen.until(rb"still here\r\nstill here")
    screen.type(b"\x1d")
    found = re.search(rb"--terminal (term-[a-z0-9]{12})", screen.until(rb"--terminal term-[a-z0-9]{12}"))
    assert found is not None
    assert screen.end() == 0
    again = Screen(sandbox.id, "--terminal", found[1].decode(), **environ)
    again.until(rb"ready\r\nstill here\r\nstill here")
    again.type(b"\x04")
    assert again.end() == 0


@pytest.mark.parametrize("by_itself", [False, True])
def test_cloche_shell_wakes_a_sandbox_that_was_put_to_rest(
    server: ServerProcess, environ: dict[str, str], by_itself: bool
) -> None:
    with (
        Client(f"http://127.0.0.1:{server.port}", server.key) as client,
        Sandbox.create(client=client, driver="gvisor", lifecycle={"auto_resume": False}) as place,
    ):
        screen = Screen(*(("--wake",) if by_itself else ()), place.id, **environ)
        screen.until(rb"\$ ")
        screen.type(b"kept=here\r")
        screen.until(rb"kept=here\r\n.*\$ ")
        place.suspend()
        if not by_itself:
            screen.until(rb"suspend.*Any key wakes it")
            assert place.refresh().state == "suspended"
            screen.type(b"x")
        screen.until(rb"waking it.*connected again", 60)
        screen.type(b"echo $kept\r")
        screen.until(rb"[\r\n]here\r\n")
        assert place.refresh().state == "running"
        screen.type(b"exit 3\r")
        screen.until(rb"exit\r\n")
        assert screen.end() == 3


SIZES = """
import os, signal, sys
signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b"%d %d\\n" % os.get_terminal_size(0)))
print(*os.get_terminal_size(0), "up", flush=True)
for line in sys.stdin:
    print("got", line, flush=True)
    if line == "end\\n":
        sys.exit(9)
"""


def test_cloche_exec_on_a_terminal(sandbox: Sandbox, environ: dict[str, str]) -> None:
    screen = Screen("-t", sandbox.id, "python3", "-c", SIZES, command="exec", **environ)
    screen.until(rb"\d+ \d+ up\r\n")
    screen.resize(101, 33)
    screen.until(rb"101 33\r\n")
    screen.type("größe\r".encode())
    screen.until("größe\r\ngot größe\r\n".encode())
    screen.type(b"end\r")
    screen.until(rb"got end\r\n")
    assert screen.end() == 9


def test_cloche_exec_on_a_terminal_filters_and_can_be_left(sandbox: Sandbox, environ: dict[str, str]) -> None:
    line = "printf '\\033]52;c;ZXZpbA==\\007\\033[6n\\033[?1049h\\033[31msafe\\n'; exec cat"
    screen = Screen("-t", "-c", sandbox.id, line, command="exec", **environ)
    assert screen.until(rb"safe\r\n") == b"\x1b[?1049h\x1b[31msafe\r\n"
    screen.type(b"\x1d")
    left = screen.until(rb"proc-[a-z0-9]{12} goes on")
    assert b"\x1b[?1049l" in left
    assert screen.end() == 0
    process = sandbox.processes.get(re.search(rb"proc-[a-z0-9]{12}", left)[0].decode())  # type: ignore[index]
    process.write("here\n")
    process.wait_for_log("here\r\nhere\r\n")
    process.write(b"\x03")
    assert process.wait_for_exit(timeout_s=60).signal == "SIGINT"


@pytest.mark.parametrize("extra", [["-t"], ["-t", "-d"]])
def test_cloche_exec_on_a_terminal_needs_one(sandbox: Sandbox, environ: dict[str, str], extra: list[str]) -> None:
    command = [str(Path(sys.executable).with_name("cloche")), "exec", *extra, sandbox.id, "true"]
    done = subprocess.run(command, env=os.environ | environ, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, b"--tty needs a terminal" in done.stderr) == (2, True)
    assert subprocess.run([*command[:2], *command[-2:]], env=os.environ | environ, check=False).returncode == 0


def test_cloche_shell_runs_a_program_in_a_new_sandbox(server: ServerProcess, environ: dict[str, str]) -> None:
    """Its first word was taken for the name of a sandbox."""
    with Client(server.url, server.key) as client:
        before = {one.id for one in client.list_sandboxes()}
        screen = Screen("--driver", "runc", "--", "python3", "-q", "-c", "print(input('say: '))", **environ)
        screen.until(b"say: ")
        (new,) = {one.id for one in client.list_sandboxes()} - before
        screen.type(b"word\r")
        screen.until(rb"word\r\nword")
        assert screen.end() == 0
        assert new not in {one.id for one in client.list_sandboxes()}, "it is deleted at the end"


def test_cloche_terminals(sandbox: Sandbox, environ: dict[str, str]) -> None:
    def run(*arguments: str) -> str:
        command = [str(Path(sys.executable).with_name("cloche")), *arguments]
        return subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=True).stdout

    terminal = sandbox.terminals.create(command=["cat"], name="mine")
    assert "mine" in run("terminals", "ls", sandbox.id)
    assert "/ui/terminal?sandbox=" in run("terminals", "share", sandbox.id, "mine")
    kept, revoked = terminal.shares()[0], terminal.share(ttl_s=60)
    assert revoked.id in run("terminals", "shares", sandbox.id, "mine")
    assert run("terminals", "unshare", sandbox.id, "mine", revoked.id) == f"revoked {revoked.id}\n"
    assert terminal.shares() == [kept]
    assert terminal.revoke_share(kept.id) == kept
    with pytest.raises(NotFound):
        terminal.revoke_share(kept.id)
    assert "/ui/login?token=" in run("shell", sandbox.id, "--terminal", terminal.id, "--browser")
    assert terminal.id in run("terminals", "rm", sandbox.id, "mine")
