"""Every process that a sandbox has on the host, killed: either the sandbox goes on whole, or it ends with the reason."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from cloche_server.drivers import ExitReason, OciDriver, RunState, SandboxStatus, open_drivers
from cloche_server.drivers._cgroup import Cgroup
from cloche_server.drivers._console import until_complete

from .harness import HELD, NOTHING, Sandbox, make_spec, new_id, running, traces
from .test_checkpoint import restored, save

PROXY = "file proxy"


def host_processes(sandbox: Sandbox) -> dict[int, str]:
    """Of its cgroup, with their command lines; those of programs inside of gVisor have none."""
    found = {}
    for pid in sandbox.driver._cgroup(sandbox.id).pids():
        with suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def pids_of(sandbox: Sandbox, is_it: Callable[[str], bool]) -> list[int]:
    return sorted(pid for pid, line in host_processes(sandbox).items() if is_it(line))


def is_proxy(line: str) -> bool:
    return line.startswith("runsc-gofer")


def is_console(line: str) -> bool:
    """The shell that keeps the first words, and the program that reads now."""
    return line.startswith(("sh -c (ulimit", "cat"))


def kill_proxy(sandbox: Sandbox) -> None:
    [pid] = pids_of(sandbox, is_proxy)
    os.kill(pid, signal.SIGKILL)


def how_it_ends(driver: OciDriver, sandbox_id: str, *, before: Callable[[], None] = lambda: None) -> SandboxStatus:
    async def wait() -> SandboxStatus:
        waiting = asyncio.create_task(driver.wait_exit(sandbox_id))
        await asyncio.sleep(0)
        before()
        return await asyncio.wait_for(waiting, 60)

    return asyncio.run(wait())


@pytest.fixture(params=["cold", "restored"])
def on_gvisor(
    request: pytest.FixtureRequest, drivers: dict[str, OciDriver], rootfs: Path, scratch: Path
) -> Iterator[Sandbox]:
    with running(drivers["gvisor"], rootfs, scratch / "source") as source:
        if request.param == "cold":
            yield source
            return
        save(source, scratch / "saved")
        with restored(source, rootfs, scratch / "copy", scratch / "saved") as copy:
            assert copy.check("print('alive')") == "alive"
            yield copy


def is_the_proxys_end(status: SandboxStatus) -> bool:
    return (status.state, status.reason, status.signal, status.helper) == (
        RunState.EXITED,
        ExitReason.SIGNAL,
        signal.SIGKILL,
        PROXY,
    )


def test_without_its_file_proxy_a_sandbox_has_ended(on_gvisor: Sandbox, roots: Path) -> None:
    """One that was restored went on with what it had open, and could dial no more."""
    status = how_it_ends(on_gvisor.driver, on_gvisor.id, before=lambda: kill_proxy(on_gvisor))
    assert is_the_proxys_end(status), status
    assert host_processes(on_gvisor) == {}
    asyncio.run(on_gvisor.driver.destroy(on_gvisor.id))
    assert traces(on_gvisor.id, roots) == NOTHING


def test_a_later_server_finds_the_file_proxy_missing(on_gvisor: Sandbox, roots: Path) -> None:
    """The first process is kept from ending, as it may do by itself, until the new server has looked."""
    pid = int((roots / "run/gvisor" / on_gvisor.id / "pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    kill_proxy(on_gvisor)
    _until(lambda: not pids_of(on_gvisor, is_proxy))
    later = open_drivers(roots / "data", roots / "run")["gvisor"]
    status = asyncio.run(later.inspect(on_gvisor.id))
    assert (status.state, status.reason, status.helper) == (RunState.EXITED, ExitReason.LOST, PROXY), status
    assert asyncio.run(later.inspect(on_gvisor.id)) == status
    assert host_processes(on_gvisor) == {}
    later.close()


def test_the_end_of_a_paused_sandboxs_file_proxy_is_noticed(on_gvisor: Sandbox) -> None:
    asyncio.run(on_gvisor.driver.pause(on_gvisor.id))

    def kill() -> None:
        kill_proxy(on_gvisor)
        if on_gvisor.driver._cgroup(on_gvisor.id)._layout.freezer.version == 1:  # it keeps even a KILL until it thaws
            on_gvisor.driver._cgroup(on_gvisor.id).thaw()

    assert is_the_proxys_end(how_it_ends(on_gvisor.driver, on_gvisor.id, before=kill))


def test_the_user_space_kernel_is_the_reason_when_it_was_killed(on_gvisor: Sandbox) -> None:
    """Its file proxy ends right behind it."""
    pid = int(on_gvisor.driver._layout.of(on_gvisor.id).pid.read_text())
    status = how_it_ends(on_gvisor.driver, on_gvisor.id, before=lambda: os.kill(pid, signal.SIGKILL))
    assert (status.reason, status.signal, status.helper) == (ExitReason.SIGNAL, signal.SIGKILL, "")


def test_an_orderly_end_is_not_the_file_proxys(driver: OciDriver, rootfs: Path, scratch: Path) -> None:
    with running(driver, rootfs, scratch, guest_argv=("/usr/bin/python3", "-uIc", HELD)) as sandbox:
        connection, _ = sandbox.uplink.accept()
        status = how_it_ends(driver, sandbox.id, before=connection.close)
    assert (status.reason, status.exit_code, status.helper) == (ExitReason.EXIT, 7, "")


LAST_WORDS = """
import os, socket
server = socket.socket(socket.AF_UNIX)
server.connect('/run/cloche/uplink.sock')
server.recv(1)
os.write(1, b'bye')
os._exit(7)
"""


def test_the_last_words_are_in_the_record_of_the_end(
    driver: OciDriver, rootfs: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when whoever writes them down gets a processor only later: it stands still here until it is waited for."""
    with running(driver, rootfs, scratch, guest_argv=("/usr/bin/python3", "-uIc", LAST_WORDS)) as sandbox:
        connection, _ = sandbox.uplink.accept()
        _until(lambda: len(pids_of(sandbox, is_console)) == 2)
        readers = pids_of(sandbox, is_console)

        def signal_all(number: int) -> None:
            for pid in readers:
                os.kill(pid, number)

        def end_it() -> None:
            signal_all(signal.SIGSTOP)
            connection.close()

        async def go_on_behind_the_first_look(cgroup: Cgroup) -> None:
            asyncio.get_running_loop().call_soon(signal_all, signal.SIGCONT)
            await until_complete(cgroup)

        monkeypatch.setattr("cloche_server.drivers._watching.until_complete", go_on_behind_the_first_look)
        status = how_it_ends(driver, sandbox.id, before=end_it)
    assert (status.exit_code, status.output) == (7, "bye")


LOUD = """
import os, socket, time
def dial():
    server = socket.socket(socket.AF_UNIX)
    server.connect('/run/cloche/uplink.sock')
    return server
os.write(1, b'first words')
dial().recv(1)
left = 2_000_000
while left:
    try:
        left -= os.write(1, b'x' * min(left, 65536))
    except BlockingIOError:  # gVisor, while the pipe is full
        time.sleep(0.001)
    except BrokenPipeError:
        break
dial().sendall(b'said')
time.sleep(60)
"""


@pytest.mark.parametrize("which", ["shell", "reader", "all"])
def test_without_the_reader_of_its_console_a_sandbox_goes_on(
    driver: OciDriver, rootfs: Path, scratch: Path, which: str
) -> None:
    """Also when it says more than a pipe holds: what it says is lost then, and it may be told so."""
    with running(driver, rootfs, scratch, guest_argv=("/usr/bin/python3", "-uIc", LOUD)) as sandbox:
        ready, _ = sandbox.uplink.accept()
        _until(lambda: len(pids_of(sandbox, is_console)) == 2)
        console = pids_of(sandbox, is_console)
        for pid in {"shell": console[:1], "reader": console[1:], "all": console}[which]:
            os.kill(pid, signal.SIGKILL)
        with ready:
            ready.sendall(b"!")
            done, _ = sandbox.uplink.accept()
        with done:
            assert done.recv(4) == b"said"
        assert asyncio.run(driver.inspect(sandbox.id)).state is RunState.RUNNING


def test_a_killed_process_of_a_program_inside_ends_that_program_or_the_sandbox(
    drivers: dict[str, OciDriver], rootfs: Path, scratch: Path
) -> None:
    """gVisor: the host's processes that execute the programs. Whichever is killed, nothing hangs."""
    with running(drivers["gvisor"], rootfs, scratch) as sandbox:
        for pid in pids_of(sandbox, lambda line: line == ""):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            status = asyncio.run(answer_or_end(sandbox))
            if status is not None:
                assert status.reason is not ExitReason.LOST
                return


async def answer_or_end(sandbox: Sandbox) -> SandboxStatus | None:
    """None when it answers; else how it has ended. `TimeoutError` when neither comes."""
    asking = asyncio.create_task(asyncio.to_thread(sandbox.check, "print('alive')"))
    ending = asyncio.create_task(sandbox.driver.wait_exit(sandbox.id))
    async with asyncio.timeout(60):
        await asyncio.wait([asking, ending], return_when=asyncio.FIRST_COMPLETED)
        if asking.done() and asking.exception() is None:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            return None
        status = await ending
    sandbox.uplink.close()  # nobody answers any more
    await asyncio.gather(asking, return_exceptions=True)
    return status


@pytest.mark.expected_logs("start 1 of sandbox")
@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.06, 0.1])
def test_a_start_one_of_whose_processes_is_killed_is_tried_again(
    driver: OciDriver, roots: Path, rootfs: Path, scratch: Path, delay_s: float
) -> None:
    """The launcher, the runtime's command, or what it has made by then; what comes too late hits the running sandbox."""

    async def start_and_kill() -> str:
        spec = make_spec(new_id(), rootfs, scratch)
        starting = asyncio.create_task(driver.start(spec))
        pids = driver._cgroup(spec.sandbox_id).pids
        while not pids() and not starting.done():
            await asyncio.sleep(0.001)
        await asyncio.sleep(delay_s)
        for pid in sorted(pids())[-1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(starting, 60)
        status = await driver.inspect(spec.sandbox_id)
        assert status.state is RunState.RUNNING or status.reason is not ExitReason.LOST, status
        await driver.destroy(spec.sandbox_id)
        return spec.sandbox_id

    assert traces(asyncio.run(start_and_kill()), roots) == NOTHING


def _until(is_true: Callable[[], bool], bound_s: float = 60) -> None:
    deadline = time.monotonic() + bound_s
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
