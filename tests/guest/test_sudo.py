"""sudo without setuid: what a command line means, and the broker with its real client."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import cloche_guest.sudo
from cloche_guest.children import Account, Children
from cloche_guest.sudo import SudoBroker
from cloche_guest.sudo._request import Order, SudoUsage, read_order

CLIENT = Path(cloche_guest.sudo.__file__).with_name("client.py")
ANNA = Account(1001, 1001, "/home/anna", "anna")


def order(*arguments: str, **caller: str) -> Order:
    sandbox = {"PATH": "/usr/bin", "API": "1"}
    return read_order(arguments, {"USER": "user", **caller}, sandbox, {"anna": ANNA}.get)


def test_a_command_runs_as_root_with_roots_home_and_the_sandboxes_environment() -> None:
    got = order("apt-get", "-y", "install", TERM="xterm", SECRET="x")
    assert (got.argv, got.account.uid) == (["apt-get", "-y", "install"], 0)
    assert got.env == {
        **{"PATH": "/usr/bin", "API": "1", "TERM": "xterm", "HOME": "/root", "USER": "root", "LOGNAME": "root"},
        **{"SHELL": "/bin/bash", "SUDO_USER": "user"},
    }


def test_preserve_env_keeps_the_callers_variables_but_not_the_home() -> None:
    assert {"SECRET": "x", "HOME": "/root"}.items() <= order("-E", "true", SECRET="x", HOME="/home/user").env.items()
    assert "SECRET" not in order("--preserve-env=OTHER", "true", SECRET="x").env
    assert order("--preserve-env=SECRET", "true", SECRET="x").env["SECRET"] == "x"


def test_variables_before_the_command_are_set_and_arguments_behind_it_are_not_read() -> None:
    got = order("-n", "A=1", "env", "-u", "B", "C=2")
    assert (got.argv, got.env["A"]) == (["env", "-u", "B", "C=2"], "1")


@pytest.mark.parametrize(
    "arguments", [["-u", "anna"], ["-uanna"], ["--user=anna"], ["--user", "anna"], ["-nu", "anna"]]
)
def test_another_user_can_be_asked_for(arguments: list[str]) -> None:
    assert order(*arguments, "id").account == ANNA


@pytest.mark.parametrize(
    ("arguments", "argv"),
    [
        (["-i"], ["/bin/bash", "-l"]),
        (["-s"], ["/bin/bash"]),
        (["-s", "echo", "a b"], ["/bin/bash", "-c", "echo 'a b'"]),
        (["-i", "id"], ["/bin/bash", "-l", "-c", "id"]),
    ],
)
def test_shells(arguments: list[str], argv: list[str]) -> None:
    assert order(*arguments).argv == argv


def test_asking_about_sudo_starts_nothing() -> None:
    assert order("-v") == Order((), order("true").account)
    assert "NOPASSWD" in order("-l").text
    assert "usage" in order("--help").text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "usage"),
        (["-u", "nobody2", "id"], "unknown user nobody2"),
        (["-Z", "id"], "unknown option -Z"),
        (["--frob", "id"], "unknown option --frob"),
        (["-u"], "needs a value"),
        (["-g", "wheel", "id"], "not supported"),
    ],
)
def test_what_cannot_be_done_is_refused_in_sudos_words(arguments: list[str], said: str) -> None:
    with pytest.raises(SudoUsage, match=said):
        order(*arguments)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[SudoBroker]:
    children = Children(collect_orphans=False)
    children.watch()
    allowed = tmp_path / "allowed"
    allowed.touch()
    broker = SudoBroker(
        tmp_path / "sudo.sock", children, allowed=allowed.exists, environment=lambda: {"PATH": os.environ["PATH"]}
    )
    broker.open()
    yield broker
    await broker.close()
    async with asyncio.timeout(60):
        await asyncio.gather(*(child.exited for child in list(children._children.values())))
    children.unwatch()


async def sudo(directory: Path, *arguments: str) -> asyncio.subprocess.Process:
    """The real client, its descriptors on pipes."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-IS", str(CLIENT), *arguments),
        env={**os.environ, "CLOCHE_SUDO_SOCKET": str(directory / "sudo.sock")},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.usefixtures("broker")
async def test_the_command_has_the_callers_descriptors_and_its_exit_code_comes_back(tmp_path: Path) -> None:
    client = await sudo(tmp_path, "sh", "-c", "id -u; cat; echo problem >&2; exit 7")
    out, err = await client.communicate(b"typed")
    assert (out, err, client.returncode) == (b"0\ntyped", b"problem\n", 7)


@pytest.mark.usefixtures("broker")
async def test_a_signal_reaches_the_command_and_its_death_is_told(tmp_path: Path) -> None:
    client = await sudo(tmp_path, "sh", "-c", "echo ready; exec sleep 60")
    assert client.stdout is not None
    assert await client.stdout.readline() == b"ready\n"
    client.send_signal(signal.SIGTERM)
    await client.communicate()
    assert client.returncode == 128 + signal.SIGTERM


@pytest.mark.usefixtures("broker")
async def test_a_client_that_is_killed_hangs_up_on_its_command(tmp_path: Path) -> None:
    client = await sudo(tmp_path, "sh", "-c", "trap 'echo hung up; kill $!; exit' HUP; echo ready; sleep 60 & wait")
    assert client.stdout is not None
    assert await client.stdout.readline() == b"ready\n"
    client.kill()
    assert (await client.communicate())[0] == b"hung up\n"


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize(
    ("arguments", "said"), [(["no-such-program"], b"command not found"), (["-Z"], b"unknown option -Z")]
)
async def test_a_refusal_is_printed_and_exits_1(tmp_path: Path, arguments: list[str], said: bytes) -> None:
    client = await sudo(tmp_path, *arguments)
    _, err = await client.communicate()
    assert said in err
    assert client.returncode == 1


@pytest.mark.usefixtures("broker")
async def test_a_sandbox_without_sudo_refuses_and_one_with_it_does_not(tmp_path: Path) -> None:
    allowed = await sudo(tmp_path, "true")
    await allowed.communicate()
    (tmp_path / "allowed").unlink()
    refused = await sudo(tmp_path, "true")
    _, err = await refused.communicate()
    assert (allowed.returncode, refused.returncode) == (0, 1)
    assert b"created without sudo" in err


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize(
    "message", [b"", b"\n", b"garbage\n", b"{}\n", b'{"arguments": ["id"], "env": {}, "cwd": "/"}\n']
)
async def test_garbage_and_missing_descriptors_are_refused_and_the_broker_goes_on(
    tmp_path: Path, message: bytes
) -> None:
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / "sudo.sock"))
    writer.write(message)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    assert b"refused" in answer
    client = await sudo(tmp_path, "true")
    await client.communicate()
    assert client.returncode == 0
