"""Start, look, end, remove: on real runtimes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path

import pytest

from cloche.errors import SandboxNotRunning, SandboxStartFailed
from cloche_server.drivers import ExitReason, OciDriver, RunState, SandboxSpec, open_drivers

from .harness import HELD, NOTHING, Limits, Sandbox, Uplink, make_spec, new_id, running, traces


def test_a_started_sandbox_runs_is_listed_and_measured(shared: Sandbox) -> None:
    async def look() -> None:
        assert (await shared.driver.inspect(shared.id)).state is RunState.RUNNING
        assert shared.id in await shared.driver.list()
        usage = await shared.driver.usage(shared.id)
        assert 1 << 20 < usage.memory_bytes <= usage.memory_peak_bytes < 2 * Limits.memory_mb << 20
        assert usage.cpu_seconds > 0
        assert usage.pids >= 1

    asyncio.run(look())


def test_pid_1_is_the_program_asked_for_and_root(shared: Sandbox) -> None:
    assert shared.check("import os; print(os.getppid(), os.getuid(), os.path.exists('/workspace'))") == "1 0 True"


def test_the_environment_is_the_images_and_the_guests_and_nothing_else(
    driver: OciDriver, rootfs: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_SECRET", "canary-of-the-server")
    changes = {"image_env": {"A": "image", "B": "image"}, "guest_env": {"B": "guest"}}
    with running(driver, rootfs, scratch, **changes) as sandbox:
        everything = sandbox.check(
            "import glob\nfor p in glob.glob('/proc/[0-9]*/environ'): print(open(p,'rb').read().replace(b'\\0',b'\\n').decode())"
        )
        assert {"A=image", "B=guest"} <= set(everything.split())
        assert "canary-of-the-server" not in everything


def test_loopback_is_up_and_the_only_interface(shared: Sandbox) -> None:
    names = shared.check("print(*[l.split(':')[0].strip() for l in open('/proc/net/dev').readlines()[2:]])")
    assert names == "lo"
    echo = (
        "import socket; s=socket.create_server(('127.0.0.1',0)); c=socket.create_connection(s.getsockname(), 60);"
        "c.sendall(b'up'); print(s.accept()[0].recv(9).decode())"
    )
    assert shared.check(echo, user=True) == "up"
    outside = """
import socket
try:
    socket.create_connection(('192.0.2.1', 80), 60)
except OSError as error:
    print(error.errno)
"""
    assert shared.check(outside) in ("101", "113")  # ENETUNREACH on Linux, EHOSTUNREACH on gVisor


def test_a_new_servers_socket_is_reached_through_the_old_mount(driver: OciDriver, rootfs: Path, scratch: Path) -> None:
    """gVisor caches names of mounts that only it changes; a guest must still see what a new server makes."""
    with running(driver, rootfs, scratch) as sandbox:
        assert sandbox.check("print(1)") == "1"
        for generation in range(2):
            sandbox.uplink.close()
            sandbox.uplink = Uplink(scratch)
            assert sandbox.check(f"print({generation})") == str(generation)


def test_the_uplink_is_read_only_and_only_roots(shared: Sandbox) -> None:
    write = "import os\ntry: os.unlink('/run/cloche/uplink.sock')\nexcept OSError as e: print(e.errno)"
    assert shared.check(write) == "30"  # EROFS
    connect = """
import socket
try:
    socket.socket(socket.AF_UNIX).connect('/run/cloche/uplink.sock')
except OSError as error:
    print(error.errno)
"""
    assert shared.check(connect, user=True) == "13"  # EACCES


def test_an_exit_is_seen_at_once_with_its_code(driver: OciDriver, rootfs: Path, scratch: Path) -> None:
    async def end() -> None:
        with running_async(driver, rootfs, scratch, guest_argv=("/usr/bin/python3", "-uIc", HELD)) as (
            spec,
            start,
            uplink,
        ):
            await start
            connection, _ = await asyncio.to_thread(uplink.accept)
            waiting = asyncio.create_task(driver.wait_exit(spec.sandbox_id))
            await asyncio.sleep(0)
            assert not waiting.done()
            connection.close()
            status = await asyncio.wait_for(waiting, 60)
            assert (status.state, status.reason, status.exit_code) == (RunState.EXITED, ExitReason.EXIT, 7)
            assert "bye" in status.output
            await driver.destroy(spec.sandbox_id)
            assert (await driver.inspect(spec.sandbox_id)).state is RunState.UNKNOWN

    asyncio.run(end())


def test_a_new_server_sees_the_exit_of_an_old_ones_sandbox(
    driver: OciDriver, roots: Path, rootfs: Path, scratch: Path
) -> None:
    async def adopt() -> None:
        with running_async(driver, rootfs, scratch) as (spec, start, _):
            await start
            later = open_drivers(roots / "data", roots / "run")[driver.name]
            assert (await later.inspect(spec.sandbox_id)).state is RunState.RUNNING
            waiting = asyncio.create_task(later.wait_exit(spec.sandbox_id))
            await asyncio.sleep(0)
            os.kill(int((roots / "run" / driver.name / spec.sandbox_id / "pid").read_text()), signal.SIGKILL)
            status = await asyncio.wait_for(waiting, 30)
            assert (status.reason, status.signal) == (ExitReason.SIGNAL, signal.SIGKILL)
            await later.destroy(spec.sandbox_id)
            later.close()
            await driver.destroy(spec.sandbox_id)

    asyncio.run(adopt())


class running_async:  # noqa: N801 - reads as a function
    """The spec of a sandbox, the coroutine that starts it, and its uplink."""

    def __init__(self, driver: OciDriver, rootfs: Path, scratch: Path, **changes: object) -> None:
        self._driver = driver
        self._uplink = Uplink(scratch)
        self._spec = make_spec(new_id(), rootfs, scratch, **changes)

    def __enter__(self) -> tuple[SandboxSpec, Coroutine[None, None, None], Uplink]:
        return self._spec, self._driver.start(self._spec), self._uplink

    def __exit__(self, *_: object) -> None:
        self._uplink.close()


def test_destroy_leaves_nothing_and_may_be_repeated(
    driver: OciDriver, rootfs: Path, roots: Path, scratch: Path
) -> None:
    with running(driver, rootfs, scratch) as sandbox:
        assert traces(sandbox.id, roots) != NOTHING
        asyncio.run(driver.destroy(sandbox.id))
        assert traces(sandbox.id, roots) == NOTHING
        asyncio.run(driver.destroy(sandbox.id))
        with pytest.raises(SandboxNotRunning):
            asyncio.run(driver.usage(sandbox.id))


def test_the_hosts_mount_table_never_shows_a_sandbox(shared: Sandbox) -> None:
    assert shared.id not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.expected_logs("start . of sandbox")
def test_a_program_that_is_not_there_fails_with_the_runtimes_words_and_leaves_nothing(
    driver: OciDriver, rootfs: Path, roots: Path, scratch: Path
) -> None:
    spec = make_spec(new_id(), rootfs, scratch, guest_argv=("/no/such/program",))
    with pytest.raises(SandboxStartFailed, match=r"(?s)2 attempts.*no such file") as caught:
        asyncio.run(driver.start(spec))
    assert "/no/such/program" in str(caught.value.details["output"])
    assert traces(spec.sandbox_id, roots) == NOTHING


@pytest.mark.expected_logs("start . of sandbox")
def test_a_guest_that_ends_before_its_probe_is_tried_twice_then_reported(
    driver: OciDriver, rootfs: Path, roots: Path, scratch: Path
) -> None:
    spec, uplink = make_spec(new_id(), rootfs, scratch, guest_argv=("/usr/bin/python3", "-uIc", HELD)), Uplink(scratch)

    async def end_it() -> None:
        connection, _ = await asyncio.to_thread(uplink.accept)
        connection.close()
        await asyncio.Event().wait()

    with pytest.raises(SandboxStartFailed, match=r"(?s)2 attempts.*exit 7.*bye"):
        asyncio.run(driver.start(spec, end_it))
    uplink.close()
    assert traces(spec.sandbox_id, roots) == NOTHING


@pytest.mark.expected_logs("start 1 of sandbox")
def test_a_failed_first_try_is_removed_and_the_second_succeeds(driver: OciDriver, rootfs: Path, scratch: Path) -> None:
    tries: list[int] = []

    async def probe() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("not this time")

    async def start() -> None:
        with running_async(driver, rootfs, scratch) as (spec, start, _):
            start.close()
            await driver.start(spec, probe)
            assert (await driver.inspect(spec.sandbox_id)).state is RunState.RUNNING
            await driver.destroy(spec.sandbox_id)

    asyncio.run(start())
    assert len(tries) == 2


def test_starting_what_runs_is_refused(shared: Sandbox, rootfs: Path) -> None:
    with pytest.raises(SandboxStartFailed, match="already"):
        asyncio.run(shared.driver.start(make_spec(shared.id, rootfs, shared.uplink.directory)))
    assert shared.check("print('still here')") == "still here"


FLOOD = """
import os, time
os.write(1, b'first words')
left = 20_000_000
while left:
    try:
        left -= os.write(1, b'x' * min(left, 65536))
    except BlockingIOError:  # gVisor, while the pipe is full
        time.sleep(0.001)
os.close(1)
import socket
socket.socket(socket.AF_UNIX).connect('/run/cloche/uplink.sock')
time.sleep(60)
"""


def test_what_is_written_to_the_console_is_bounded_and_never_blocks(
    driver: OciDriver, rootfs: Path, scratch: Path
) -> None:
    async def flood() -> str:
        with running_async(driver, rootfs, scratch, guest_argv=("/usr/bin/python3", "-uIc", FLOOD)) as (
            spec,
            start,
            uplink,
        ):
            await start
            await asyncio.to_thread(uplink.wait_for_dial, 60)
            text = await driver.console(spec.sandbox_id)
            assert (await driver.inspect(spec.sandbox_id)).state is RunState.RUNNING
            await driver.destroy(spec.sandbox_id)
            return text

    text = asyncio.run(flood())
    assert text.startswith("first words")
    assert len(text) == 65_536
