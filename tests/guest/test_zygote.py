"""Kernels that are forked from a zygote: as good as those that are started, and sooner there."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from guest_process import GRACE_S, Context, Guest, is_running, running_guest, text, wait_for

from cloche_guest.children import Children
from cloche_guest.contexts._log_tail import LogTail
from cloche_guest.contexts._preload import DATA_STACK, differs_at_import, wanted_modules
from cloche_guest.contexts._zygote import CannotFork, Zygote

OF_TESTS = "module_of_the_tests"
"""On the path of all kernels here."""


PATIENT: Final = """
from cloche_guest.contexts import _spare
_spare.PATIENCE_S = _spare.ORDER_S = 60
"""
"""Of a guest: whoever sees that a kernel is being made ahead gets it, however long that takes."""


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """A guest with a zygote."""
    path = tmp_path_factory.mktemp("packages")
    (path / f"{OF_TESTS}.py").write_text("import time; BORN = time.monotonic_ns()")
    with running_guest(before=PATIENT, PYTHONPATH=str(path)) as guest:
        guest.packages = path  # type: ignore[attr-defined]
        guest.create()  # with one context alone no kernel is made ahead
        preload(guest)
        yield guest


LIMITS: Final = {"open_files": 4000}
"""A context with limits never gets the kernel that was made ahead."""


@pytest.fixture(params=["now", "ahead"])
def forked(forking: Guest, request: pytest.FixtureRequest) -> Iterator[Context]:
    """Forked when it was asked for, or made ahead."""
    grace = {"interrupt_grace_s": GRACE_S}
    made = create_forked(forking, limits=LIMITS, **grace) if request.param == "now" else create_ahead(forking, **grace)
    yield made
    forking.http.delete(made.path)


def preload(guest: Guest, *modules: str) -> None:
    assert guest.http.post("/v1/preload", json={"modules": list(modules)}).status_code == 204


def how(context: Context) -> Any:
    """None when it was forked; else why not."""
    started = context.context_until("kernel_started")["data"]
    assert (started["by"] == "fork") == (started["not_forked"] is None)
    return started["not_forked"]


def create_forked(guest: Guest, **body: Any) -> Context:
    """After a zygote ended, the next one is on its way: contexts are made until one is forked."""
    end = time.monotonic() + 60
    while True:
        context = guest.create(**body)
        if (why := how(context)) is None:
            return context
        context.delete()
        assert time.monotonic() < end, why


UNREADY: Final = ("there is no zygote", "the zygote has ended", "the zygote is being prepared")


def create_with_zygote(guest: Guest, **body: Any) -> Context:
    """Contexts are made until the zygote, if it did not fork one, had a reason of its own."""
    end = time.monotonic() + 60
    while True:
        context = guest.create(**body)
        if (why := how(context)) not in UNREADY:
            return context
        context.delete()
        assert time.monotonic() < end, why


def create_ahead(guest: Guest, **body: Any) -> Context:
    """Contexts are made until one gets a kernel that was made ahead."""
    end = time.monotonic() + 60
    while True:
        context = create_forked(guest, **body)
        if started(context)["ahead"]:
            return context
        context.delete()
        assert time.monotonic() < end, started(context)
        spare_of(guest)


def started(context: Context) -> Any:
    return context.context_until("kernel_started")["data"]


def spare_of(guest: Guest) -> int:
    """The kernel that waits for its order. One is made when the guest rests after a context was made."""
    found: list[int] = []

    def is_there() -> bool:
        found[:] = [pid for pid in _descendants(guest.process.pid) if _is_spare(pid)]
        return bool(found)

    wait_for(is_there, "a kernel that is made ahead")
    return found[0]


def _descendants(pid: int) -> set[int]:
    children = children_of(pid)
    return children.union(*(_descendants(child) for child in children)) if children else set()


def _is_spare(pid: int) -> bool:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return False
    return line[-1] == b"spare"


def zygote_of(forked: Context) -> int:
    return int(forked.value("import os; os.getppid()"))


def test_a_sandbox_with_one_kernel_has_no_other_process_and_from_the_second_on_there_is_a_zygote() -> None:
    with running_guest() as guest:
        first = guest.create()
        pid = int(first.value("import os; os.getpid()"))
        assert children_of(guest.process.pid) == {pid}
        first.ok("import json.tool")
        second = guest.create()
        assert "no zygote" in how(second)
        third = create_forked(guest)
        assert third.value("1 + 1") == "2"


def children_of(pid: int) -> set[int]:
    try:
        tasks = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # it has just ended
        return set()
    return {int(child) for children in tasks for child in children.split()}


def test_it_runs_code_shows_output_and_answers_questions(forked: Context) -> None:
    run = forked.ok("import os\nprint('printed')\nos.system('echo child')\n{1: 2}")
    assert text(run) == "printed\nchild\n"
    forked.ok("number = 42")
    variables = forked.variables()
    assert variables.keys() == {"os", "number"}
    assert variables["number"]["summary"] == "42"
    assert forked.value("%pwd").strip("'") == str(forked.guest.home)


def test_what_was_imported_beforehand_is_imported_once_for_all(forking: Guest) -> None:
    preload(forking, OF_TESTS)
    code = f"import {OF_TESTS}; {OF_TESTS}.BORN"
    first, second = create_forked(forking), create_forked(forking)
    assert first.value(code) == second.value(code)
    first.delete()
    second.delete()


def test_variables_of_one_are_not_in_another(forking: Guest, forked: Context) -> None:
    forked.ok(f"import {OF_TESTS}; {OF_TESTS}.changed = True; leaked = 1")
    other = create_forked(forking)
    assert other.value(f"import {OF_TESTS}; hasattr({OF_TESTS}, 'changed'), 'leaked' in globals()") == "(False, False)"
    other.delete()


def test_it_leads_a_session_of_its_own_with_the_signals_of_a_started_one(forking: Guest, forked: Context) -> None:
    started = forking.create(env={"PYTHONDONTWRITEBYTECODE": "1"})
    code = (
        "import os, signal, threading\n"
        "(os.getsid(0) == os.getpid() == os.getpgid(0),"
        " [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE)],"
        " signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.set_wakeup_fd(-1) >= 0,"
        " threading.current_thread() is threading.main_thread(), os.read(0, 1), os.umask(0o22) == 0o22)"
    )
    assert "on it_" not in forked.value(code)
    assert forked.value(code) == started.value(code)
    assert forked.value(code).startswith("(True")
    started.delete()


def test_an_interrupt_reaches_the_cell_and_its_children_and_keeps_variables(forked: Context) -> None:
    forked.ok("import subprocess, time; kept = 1")
    run = forked.submit("subprocess.run(['sleep', '600'])")
    forked.until(run, "started")
    forked.interrupt()
    assert forked.wait(run)["status"] == "interrupted"
    assert forked.value("kept") == "1"


def test_processes_threads_and_forks_work_in_it(forked: Context) -> None:
    code = """
import subprocess, sys, threading, multiprocessing, concurrent.futures, asyncio
def double(n): return 2 * n
with multiprocessing.get_context('fork').Pool(2) as pool: pooled = pool.map(double, [1, 2])
with concurrent.futures.ThreadPoolExecutor(2) as pool: threaded = list(pool.map(double, [3, 4]))
out = subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True, text=True).stdout
await asyncio.sleep(0.01)
pooled, threaded, out
"""
    assert forked.value(code) == repr(([2, 4], [6, 8], "5\n"))


def test_its_end_is_told_with_exit_code_and_signal(forked: Context) -> None:
    failure = forked.run("import os; os._exit(3)")["failure"]
    assert (failure["reason"], failure["exit_code"]) == ("exit", 3)
    failure = forked.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")["failure"]
    assert failure["signal"] == "SIGKILL"
    assert forked.value("1 + 1") == "2"  # the new kernel


def test_what_ends_a_program_runs_at_its_end(forking: Guest) -> None:
    """It begins at the outermost frame of the program, and not deep in the zygote."""
    context = create_forked(forking)
    file = forking.home / "at_exit"
    context.ok(f"import atexit; atexit.register(lambda: open({str(file)!r}, 'w').close())")
    pid = int(context.value("import os; os.getpid()"))
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not is_running(pid), "the kernel to end")
    context.delete()


def test_with_it_ends_what_it_has_started_also_a_daemon_that_was_only_forked(forking: Guest) -> None:
    """Such a daemon has the environment of the zygote in /proc, which says whose it is all the same."""
    context = create_forked(forking)
    code = """
import os, subprocess, time
plain = subprocess.Popen(['sleep', '600']).pid
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        os.write(writing, str(os.getpid()).encode())
        time.sleep(600)
    os._exit(0)
os.wait()
plain, int(os.read(reading, 20))
"""
    pids = [int(word) for word in context.value(code).strip("()").split(",")]
    assert all(map(is_running, pids))
    context.delete()
    wait_for(lambda: not any(map(is_running, pids)), "its processes to end")


def test_random_numbers_and_names_differ_between_forks(forking: Guest) -> None:
    made = [create_forked(forking), create_forked(forking)]
    code = "import random, uuid, tempfile, os; {}"
    for draw in ("random.random()", "uuid.uuid4()", "tempfile.mktemp()", "os.urandom(8)"):
        assert made[0].value(code.format(draw)) != made[1].value(code.format(draw))
    for context in made:
        context.delete()


def test_env_cwd_and_limits_are_the_contexts_own(forking: Guest, tmp_path: Path) -> None:
    context = create_forked(
        forking, env={"MINE": "1", "TZ": "Asia/Tokyo"}, cwd=str(tmp_path), limits={"open_files": 100}
    )
    code = "import os, resource, time\nprint(os.environ['MINE'], time.tzname[0], os.getcwd(), resource.getrlimit(7))"
    assert text(context.ok(code)) == f"1 JST {tmp_path} (100, 100)\n"
    assert context.value("os.environ.get('CLOCHE_CONTEXT_ID')") == repr(context.id)
    assert text(context.ok("print(open('/proc/self/environ').read().split('CLOCHE_KERNEL=')[1])")).startswith(
        f"{context.id}:1:"
    )
    line = Path(f"/proc/{int(context.value('os.getpid()'))}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    assert context.id.encode() in line[2]
    assert [word.decode() for word in line[3:]] == [context.id]
    context.delete()
    other = create_forked(forking)
    assert other.value("import os; 'MINE' in os.environ") == "False"
    other.delete()


def test_a_directory_that_is_not_there_is_the_callers_mistake(forking: Guest, forked: Context) -> None:
    answer = forking.call("POST", "/v1/contexts", {"cwd": "/nonexistent"}, status=400)
    assert "/nonexistent: No such file" in answer["message"]


@pytest.mark.parametrize(
    "env", [{"PYTHONPATH": "/tmp"}, {"OMP_NUM_THREADS": "1"}, {"MPLBACKEND": "agg"}, {"LC_ALL": "C"}]
)
def test_settings_that_are_read_at_the_start_start_a_kernel(
    forking: Guest, forked: Context, env: dict[str, str]
) -> None:
    context = create_with_zygote(forking, env=env)
    name, value = next(iter(env.items()))
    assert how(context) == (None if name == "MPLBACKEND" else f"{name} count when a kernel starts")
    if name != "MPLBACKEND":  # it is ours in every kernel
        assert context.value(f"import os; os.environ['{name}']") == repr(value)
    context.delete()


def test_an_environment_too_large_for_the_order_starts_a_kernel(forking: Guest, forked: Context) -> None:
    context = create_with_zygote(forking, env={f"BIG_{n}": "x" * 100_000 for n in range(2)}, limits=LIMITS)
    assert "bytes" in how(context)
    context.delete()
    assert how(create_forked(forking)) is None


def test_contexts_outlive_their_zygote_and_their_end_is_told(forking: Guest) -> None:
    context = create_forked(forking)
    context.ok("kept = 1")
    zygote = zygote_of(context)
    os.kill(zygote, signal.SIGKILL)
    wait_for(lambda: not is_running(zygote), "the zygote to end")
    assert context.value("kept") == "1"
    failure = context.run("import os; os._exit(4)")["failure"]
    assert failure["exit_code"] == 4
    other = create_forked(forking)
    assert zygote_of(other) != zygote
    other.delete()
    context.delete()


def test_a_context_is_deleted_though_its_zygote_was_stopped(forking: Guest) -> None:
    """Stopped by the user's code, it tells of no end."""
    context, deleted = create_forked(forking), create_forked(forking)
    zygote = zygote_of(deleted)
    context.ok(f"kept = 1; import os; os.kill({zygote}, {signal.SIGSTOP:d})")
    deleted.delete()
    assert not is_running(zygote)
    assert context.value("kept") == "1"
    context.delete()


def test_packages_that_come_later_are_there_in_the_next_kernel(forking: Guest, forked: Context) -> None:
    """A fork would have old modules in its memory and new ones on the disk."""
    packages: Path = forking.packages  # type: ignore[attr-defined]
    spare_of(forking)
    module = f"installed_later_{os.urandom(4).hex()}"
    (packages / f"{module}.py").write_text("")
    context = create_with_zygote(forking)
    assert how(context) == "packages were installed or removed since its imports"
    context.ok(f"import {module}")
    context.delete()
    other = create_forked(forking)
    assert zygote_of(other) != zygote_of(forked)
    other.delete()


def test_a_module_that_starts_a_thread_makes_forks_impossible_and_no_context_fails(tmp_path: Path) -> None:
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    with running_guest(PYTHONPATH=str(tmp_path)) as guest:
        preload(guest)
        assert how(guest.create()) is None
        preload(guest, "starts_a_thread")
        context = guest.create()
        assert "threads are running" in how(context)
        assert context.value("1 + 1") == "2"


def test_a_module_that_cannot_be_imported_or_exits_hurts_nobody(forking: Guest, forked: Context) -> None:
    preload(forking, "there_is_no_such_module", "antigravity_of_nobody")
    assert how(create_forked(forking)) is None


def test_forks_leave_no_descriptor_in_the_zygote_and_take_none_of_its_own(forking: Guest, forked: Context) -> None:
    def open_files(pid: int) -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    zygote = zygote_of(forked)
    spare_of(forking)
    before, kernels = open_files(zygote), children_of(zygote)
    for _ in range(5):
        create_forked(forking, limits=LIMITS).delete()
    wait_for(lambda: open_files(zygote) <= before, "the descriptors to be closed")
    wait_for(lambda: children_of(zygote) == kernels, "the end of the others, and that no zombie is left")
    started = forking.create(env={"LC_ALL": "C"})
    links = "[os.readlink(f'/proc/self/fd/{fd}') for fd in range(3, 200) if os.path.lexists(f'/proc/self/fd/{fd}')]"
    count = f"import os; sum(link.startswith('socket') for link in {links})"
    assert forked.value(count) == started.value(count)
    started.delete()


def test_forked_kernels_end_with_a_guest_that_is_killed() -> None:
    with running_guest() as guest:
        preload(guest)
        context = create_forked(guest)
        pids = [int(context.value("import os; os.getpid()")), zygote_of(context)]
        guest.create()
        pids.append(spare_of(guest))
        guest.process.kill()
        wait_for(lambda: not any(map(is_running, pids)), "the kernel and the zygote to end")


def test_a_new_kernel_has_the_environment_of_today(tmp_path: Path) -> None:
    """The zygote of a fork of the sandbox was started under another identity."""
    assert differs_at_import({"CLOCHE_SANDBOX_ID": "a", "PATH": "/a"}, {"CLOCHE_SANDBOX_ID": "b", "NEW": "1"}) == []
    assert differs_at_import({"PYTHONPATH": "/a"}, {}) == ["PYTHONPATH"]
    assert differs_at_import({"HOME": "/a", "LANG": "C"}, {"HOME": "/b", "LANG": "C", "OMP_X": "1"}) == [
        "HOME",
        "OMP_X",
    ]
    assert differs_at_import({"HOMEPAGE": "1", "LANGUAGES": "2"}, {}) == []


def test_of_the_data_stack_what_was_seen_is_imported_beforehand() -> None:
    assert wanted_modules(["a"], set()) == ["a"]
    assert wanted_modules(["a"], {*DATA_STACK[:2], "torch"}) == ["a", *DATA_STACK[:2]]


@pytest.mark.parametrize(
    "lie",
    [
        {"answer": 1, "pid": 1},
        {"answer": 1, "pid": os.getpid()},
        {"exited": 1, "status": 0, "by_signal": False},
        [],
        "x",
    ],
)
async def test_a_zygote_that_user_code_has_taken_over_gains_nothing(lie: object) -> None:
    """The guest is root and signals the pids it is told; those must be children of the zygote."""
    children = Children(collect_orphans=False)
    children.watch()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    log, log_end = os.pipe()
    os.close(log_end)
    child = children.spawn(
        ["sleep", "60"], cwd="/", env={}, account=None, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    zygote = Zygote(child, ours, LogTail(log), children, {})
    asking = asyncio.ensure_future(zygote.fork({}, []))
    await asyncio.sleep(0)
    theirs.send(json.dumps(lie).encode())
    with pytest.raises(CannotFork, match="gone"):
        await asyncio.wait_for(asking, 60)
    assert not zygote.is_alive
    await zygote.end()
    theirs.close()
    children.unwatch()
