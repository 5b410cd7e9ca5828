"""Processes in real sandboxes, through the SDK and the command line. One sandbox a driver, but for what ends the server."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from cloche import (
    Client,
    ClocheError,
    InvalidRequest,
    ProcessEnded,
    ProcessStartFailed,
    Sandbox,
)
from cloche.models import Event, LogCondition, Tty

from .cuttable import Cuttable
from .server_process import ServerProcess

sys.path.insert(0, str(Path(__file__).parents[1] / "guest"))

from mixed_output import FLOOD_MB, TIME_S, MixedOutput

COUNT_SLEEPERS = "ps -eo args | grep -c '^sleep 200[0-9]' || true"


@pytest.fixture(scope="module")
def connected(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url, server.key) as client:
        yield client


@pytest.fixture(scope="module", params=["gvisor", "runc"])
def sandbox(request: pytest.FixtureRequest, connected: Client) -> Iterator[Sandbox]:
    with Sandbox.create(client=connected, driver=request.param, env={"GREETING": "hello"}) as made:
        yield made


def test_exec(sandbox: Sandbox) -> None:
    """cloudflare/sandbox-sdk#320: exec never returned, even for echo."""
    result = sandbox.exec("id -un; pwd; echo $GREETING; echo err >&2; exit 5")
    assert (result.exit_code, result.stdout, result.stderr) == (5, "user\n/workspace\nhello\n", "err\n")
    assert sandbox.exec(["cat"], input=b"\0\xff").stdout_bytes == b"\0\xff"
    assert sandbox.exec(["cat"]).stdout == ""
    background = sandbox.exec("sleep 1000 & echo up")
    assert (background.stdout, background.exit_code) == ("up\n", 0)
    sandbox.processes.get(background.process_id).delete()


def test_root_and_failed_starts(sandbox: Sandbox) -> None:
    assert sandbox.exec("id -un; echo $HOME; touch /etc/mine && rm /etc/mine", user="root").stdout == "root\n/root\n"
    for command, cwd, reason in (
        (["nope"], None, "not_found"),
        (["/etc"], None, "not_executable"),
        ("x", "/n", "bad_cwd"),
    ):
        with pytest.raises(ProcessStartFailed) as error:
            sandbox.exec(command, cwd=cwd)  # type: ignore[arg-type]
        assert error.value.details["reason"] == reason


def test_a_kill_ends_everything(sandbox: Sandbox) -> None:
    """#338, opensandbox#922: only the shell died."""
    line = (
        "sleep 2001 | sleep 2002 & setsid sleep 2003 & (setsid sh -c 'sleep 2004 & sleep 2005' &) ; echo up; sleep 2006"
    )
    process = sandbox.processes.start(line)
    process.wait_for_log("up")
    until_as_many_sleep(sandbox, "6")
    process.kill()
    assert process.wait_for_exit(timeout_s=60).signal == "SIGKILL"
    until_as_many_sleep(sandbox, "0")  # one that was killed is listed until it had its turn to die


def until_as_many_sleep(sandbox: Sandbox, count: str) -> None:
    deadline = time.monotonic() + 60
    while (found := sandbox.exec(COUNT_SLEEPERS).stdout.strip()) != count:
        assert time.monotonic() < deadline, found


def test_time_is_up(sandbox: Sandbox) -> None:
    """#438: a stuck command ignored its timeout and blocked all later ones."""
    began = time.monotonic()
    result = sandbox.exec("trap '' TERM; echo before; while :; do sleep 0.05; done", timeout_s=3, grace_s=0.1)
    assert time.monotonic() - began < 60
    assert (result.timed_out, result.signal, result.stdout) == (True, "SIGKILL", "before\n")
    assert sandbox.exec("echo next").stdout == "next\n"


def test_a_daemon_holds_the_output_only_so_long(sandbox: Sandbox) -> None:
    result = sandbox.exec("setsid sleep 1007 & echo up")
    process = sandbox.processes.get(result.process_id)
    assert process.wait_for_exit(timeout_s=60).code == 0
    assert process.info.output_held
    # That it exited may come before the daemon is a sleep.
    kill = "until pkill -f '^sleep 1007'; do sleep 0.05; done; echo still there"
    assert sandbox.exec(kill, timeout_s=60).stdout == "still there\n"


def test_a_server_is_waited_for(sandbox: Sandbox) -> None:
    """#419, #250: "ready" too early, or never told that it had failed."""
    server = sandbox.processes.start(
        ["python3", "-m", "http.server", "8123", "--bind", "127.0.0.1"], env={"PYTHONUNBUFFERED": "1"}
    )
    server.wait_for_port(8123, protocol="http")
    assert server.wait_for_log("Serving HTTP").stream == "stdout"
    broken = sandbox.processes.start(["python3", "-m", "http.server", "8123", "--bind", "127.0.0.1"])
    with pytest.raises(ProcessEnded) as error:
        broken.wait_for_log("Serving HTTP")
    assert "Address already in use" in str(error.value.details["stderr"])
    server.kill(grace_s=60)
    assert server.wait_for_exit(timeout_s=100).signal in ("SIGTERM", None)


def test_terminals_and_input(sandbox: Sandbox) -> None:
    out = sandbox.exec("tty <&1 >/dev/null && stty size <&1", tty=Tty(cols=91, rows=30))
    assert out.stdout == "30 91\r\n"
    resized = "trap 'stty size; exit' WINCH; echo up; while :; do sleep 0.05; done"
    process = sandbox.processes.start(resized, tty=Tty(), stdin="open")
    process.wait_for_log("up")
    process.resize(101, 33)
    process.wait_for_log("33 101")
    process = sandbox.processes.start("cat", tty=Tty(), stdin="open")
    process.write("typed\n")
    process.wait_for_log("typed\r\ntyped\r\n")
    process.write(b"\x03")
    assert process.wait_for_exit(timeout_s=60).signal == "SIGINT"
    plain = sandbox.processes.start("sha256sum", stdin="open")
    data = random.Random(1).randbytes(3_000_000)
    plain.write(data, close=True)
    plain.wait_for_exit(timeout_s=60)
    assert plain.output().stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_a_bad_expression_does_not_stop_the_sandbox(sandbox: Sandbox) -> None:
    import re

    process = sandbox.processes.start("python3 -c \"print('a' * 60 + '!')\"; sleep 1000")
    process.wait_for_log("!")
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match="too long"):
        process.wait_for_log(re.compile("(a+)+$"))
    assert time.monotonic() - began < 30
    process.kill()


def test_without_tmp_the_next_command_still_runs(sandbox: Sandbox) -> None:
    """opensandbox#400: after `rm -rf /tmp` every later command failed."""
    sandbox.exec("rm -rf /tmp", user="root")
    assert sandbox.exec("echo fine").stdout == "fine\n"
    assert sandbox.exec("mkdir -p /tmp && chmod 1777 /tmp", user="root").ok


def test_out_of_memory_is_said(connected: Client, sandbox: Sandbox) -> None:
    with Sandbox.create(client=connected, driver=sandbox.info.driver, resources={"memory_mb": 512}) as small:
        result = small.exec(["python3", "-c", "x = [bytearray(b'x' * (50 << 20)) for _ in range(200)]"])
        assert (result.signal, result.ok) == ("SIGKILL", False), result.stderr
        assert result.model.process.exit is not None
        assert result.model.process.exit.out_of_memory
        for event in small.events():
            if event.type == "out_of_memory":
                break
        assert small.exec("echo fine").stdout == "fine\n"


def test_the_end_of_the_sandbox_ends_a_stream_with_an_error(connected: Client, sandbox: Sandbox) -> None:
    """#101: the container died and the stream hung with no error; #873: it ended with an invented exit code 0."""
    with Sandbox.create(client=connected, driver=sandbox.info.driver) as own:
        process = own.processes.start("echo up; sleep 1000")
        process.wait_for_log("up")
        with ThreadPoolExecutor(1) as pool:
            ended = None
            with suppress(ClocheError):
                for event in process.events():
                    check_that_it_was_killed(event)
                    ended = ended or pool.submit(own.delete)  # once the stream is being read
            assert ended is not None
            ended.result()


def check_that_it_was_killed(event: Event) -> None:
    """An error, or the truth: the guest may still see how its process was killed before it is killed itself."""
    assert event.data.get("code") is None, event
    assert event.type != "exited" or event.data["signal"] == "SIGKILL", event


def test_a_service_is_kept_running_and_told_of(sandbox: Sandbox) -> None:
    ready = LogCondition(pattern="up")
    sandbox.services.declare(
        "web", "echo up; exec sleep 1000", ready=ready, restart={"when": "always", "delay_s": 0.05}
    )
    sandbox.services.declare("app", "exec sleep 1000", depends_on=["web"])
    pids = []
    for event in sandbox.events():
        if event.type == "process_started" and event.data["service"] == "web":
            pids.append(event.data["pid"])
            if len(pids) == 1:
                sandbox.exec(f"kill -KILL {pids[0]}")
        if len(pids) == 2 and event.type == "service_state" and event.data["state"] == "ready":
            break
    assert sandbox.services.get("web").restarts == 1
    assert [service.name for service in sandbox.services.list()] == ["web", "app"]
    sandbox.services.delete("app")
    sandbox.services.delete("web")
    assert sandbox.exec("cat /var/lib/cloche-guest/services.json").exit_code == 1, "only root may read it"


# The command line


def cloche(
    server: ServerProcess, *arguments: str, input: bytes = b"", source: IO[bytes] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The command, with `input` or what comes from `source` as its stdin."""
    command = [str(Path(sys.executable).with_name("cloche")), "--url", server.url, *arguments]
    environ = {"CLOCHE_API_KEY": server.key, "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    stdin = {"input": input} if source is None else {"stdin": source}
    return subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False, **stdin)  # type: ignore[call-overload]


@pytest.mark.parametrize("sandbox", ["runc"], indirect=True)  # the driver is not the point here, and starts are slow
def test_the_command_line(server: ServerProcess, sandbox: Sandbox) -> None:
    box = sandbox.id
    done = cloche(server, "exec", box, "--", "sh", "-c", "printf 'a\\0b'; echo e >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"a\0b", b"e\n"), done.stderr
    data = random.Random(2).randbytes(700_000)
    piped = cloche(server, "exec", box, "sha256sum", input=data)
    assert piped.stdout.split()[0] == hashlib.sha256(data).hexdigest().encode()
    assert cloche(server, "exec", box, "-c", "exit 1").returncode == 3  # what is behind SANDBOX is the command
    assert cloche(server, "exec", "-c", box, "kill -TERM $$").returncode == 143
    assert cloche(server, "exec", "--timeout", "0.3", box, "sleep", "100").returncode == 124
    assert cloche(server, "exec", box, "no-such-program").returncode == 3
    assert cloche(server, "exec", "-c", box, "sleep 1000 & echo up").stdout == b"up\n"
    with subprocess.Popen(["sleep", "100"], stdout=subprocess.PIPE) as silent:  # input that never comes holds nobody up
        try:
            assert cloche(server, "exec", box, "true", source=silent.stdout).returncode == 0
        finally:
            silent.kill()
    started = cloche(server, "exec", "-d", "-c", box, "for i in 1 2 3; do echo $i; done; echo e >&2; exec sleep 1000")
    process_id = started.stdout.decode().strip()
    assert process_id in cloche(server, "ps", box).stdout.decode()
    sandbox.processes.get(process_id).wait_for(LogCondition(pattern="3\n"), LogCondition(pattern="e\n"))
    assert cloche(server, "logs", box, process_id).stdout == b"1\n2\n3\n"
    for stream, output in (("stdout", b"1\n2\n3\n"), ("stderr", b"e\n")):  # also when the other one said the last word
        done = cloche(server, "logs", "--stream", stream, box, process_id)
        assert done.stdout + done.stderr == output
    assert cloche(server, "kill", box, process_id).returncode == 0
    assert cloche(server, "logs", "-f", box, process_id).stdout == b"1\n2\n3\n"
    assert process_id not in cloche(server, "ps", box).stdout.decode()
    assert process_id in cloche(server, "ps", "--all", box).stdout.decode()


# A bad network, and a server that is killed


@pytest.mark.timeout(TIME_S)
def test_no_byte_is_lost_or_repeated_over_cuts_and_a_killed_server(own_server: ServerProcess, driver: str) -> None:
    """The connection is cut a hundred times and more, and the server is killed once, in the middle.

    CLOCHE_TEST_FLOOD_MB=200 is the long form.
    """
    source = random.Random(5)
    output = MixedOutput()
    cuts, killed = 0, False

    def disturb() -> None:
        nonlocal cuts, killed
        if not killed and output.received > output.size / 2:
            own_server.kill()
            own_server.start()
            killed = True
        elif source.random() < 0.15:
            network.cut()
            cuts += 1

    with Cuttable(own_server.port) as network, Client(f"http://127.0.0.1:{network.port}", own_server.key) as client:
        place = Sandbox.create(client=client, driver=driver)
        process = place.processes.start(output.command("python3"), stdin="open")
        output.read(process, disturb)
        while cuts < 100 and FLOOD_MB <= 8:
            output.read(process, disturb)  # now from the journal
        assert (killed, cuts >= 100) == (True, True)
        assert process.wait_for_exit(timeout_s=60).code == 0
        place.delete()
