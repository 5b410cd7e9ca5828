"""Contexts: isolation, many at once, limits, failures to start, the default one."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from guest_process import Context, Guest, is_running, result, running_guest, text, wait_for


@pytest.fixture
def lone_guest(request: pytest.FixtureRequest) -> object:
    """A guest of the test's own."""
    with running_guest() as guest:
        yield guest


def test_more_than_ten_contexts_made_at_once_are_right_and_apart(lone_guest: Guest) -> None:
    """sandbox-sdk#235: contexts shared state after the tenth. #515: slow parallel creation. OpenSandbox#35: many concurrent
    contexts made Jupyter unresponsive, none could be listed or deleted. Ports taken between choice and bind
    (papermill#511, jupyter_client#487) cannot happen: sockets have paths."""
    with ThreadPoolExecutor(11) as pool:
        contexts = list(pool.map(lambda number: lone_guest.create(name=f"n{number}"), range(11)))
        list(pool.map(lambda pair: pair[1].ok(f"mine = {pair[0]}"), enumerate(contexts)))
        values = list(pool.map(lambda context: context.value("mine"), contexts))
    assert values == [str(number) for number in range(11)]
    listed = lone_guest.call("GET", "/v1/contexts")["items"]
    assert {entry["id"] for entry in listed} == {context.id for context in contexts}
    with ThreadPoolExecutor(11) as pool:
        list(pool.map(Context.delete, contexts))
    assert lone_guest.call("GET", "/v1/contexts")["items"] == []
    assert lone_guest.health()["contexts"] == 0


def test_code_that_takes_all_processors_does_not_stop_the_api(guest: Guest) -> None:
    """E2B#339, #412: user code that takes all CPU makes every API call time out."""
    contexts = [guest.create() for _ in range(3)]
    runs = [context.submit("print('go')\nwhile True: pass") for context in contexts]
    for context, run_id in zip(contexts, runs, strict=True):
        context.until(run_id, "stdout")
    asked = time.monotonic()
    guest.health()
    assert contexts[0].get(runs[0])["state"] == "running"
    assert time.monotonic() - asked < 30
    for context in contexts:
        context.delete()


def test_the_default_context_is_made_on_first_use(lone_guest: Guest) -> None:
    """sandbox-sdk#333, #120, #613: "already exists" races on concurrent first use."""
    default = Context(lone_guest, "default")
    assert lone_guest.call("GET", default.path, status=404)["code"] == "not_found"
    assert lone_guest.call("DELETE", default.path, status=404)["code"] == "not_found"
    assert lone_guest.call("GET", "/v1/contexts")["items"] == []
    with ThreadPoolExecutor(5) as pool:
        pids = set(pool.map(lambda _: default.value("import os; os.getpid()"), range(5)))
    assert len(pids) == 1
    assert [entry["id"] for entry in lone_guest.call("GET", "/v1/contexts")["items"]] == ["default"]
    assert default.value("import os; os.getcwd()") == repr(str(lone_guest.home))
    default.delete()
    assert default.value("'again'") == "'again'"


def test_a_missing_cwd_is_the_callers_mistake_and_leaves_nothing(guest: Guest) -> None:
    before = guest.health()
    error = guest.call("POST", "/v1/contexts", {"cwd": "/no/such/place"}, status=400)
    assert error["code"] == "invalid_request"
    assert error["details"]["errors"] == [{"field": "cwd", "problem": "/no/such/place: No such file or directory"}]
    assert guest.health()["contexts"] == before["contexts"]


def test_a_kernel_that_cannot_start_says_why_in_its_own_words(tmp_path: Path) -> None:
    """agent-infra#186: Jupyter crash-loops, clients see a reset connection. jupyter_client#154: "died before replying"."""
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named ipykernel' >&2\nexit 3\n")
    broken.chmod(0o755)
    with running_guest(CLOCHE_GUEST_KERNEL_PYTHON=str(broken)) as guest:
        error = guest.call("POST", "/v1/contexts", {"cwd": str(guest.home)}, status=503)
        assert error["code"] == "context_start_failed"
        assert "no module named ipykernel" in error["message"]
        assert error["details"]["failure"]["exit_code"] == 3
        assert guest.health()["contexts"] == 0
        assert list((guest.home.parent / "r").glob("ctx-*")) == []


def test_a_python_that_does_not_exist_is_said(tmp_path: Path) -> None:
    with running_guest(CLOCHE_GUEST_KERNEL_PYTHON=str(tmp_path / "none")) as guest:
        error = guest.call("POST", "/v1/contexts", {"cwd": str(guest.home)}, status=503)
        assert (error["code"], "No such file" in error["message"]) == ("context_start_failed", True)


def test_limits_are_enforced_by_linux(guest: Guest) -> None:
    limits = {"memory_mb": 1024, "cpu_s": 600, "open_files": 100, "file_size_mb": 1}
    context = guest.create(limits=limits)
    code = "import resource as r; [r.getrlimit(n)[0] for n in (r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_NOFILE, r.RLIMIT_FSIZE)]"
    assert context.value(code) == "[1073741824, 600, 100, 1048576]"
    assert context.run("bytearray(1 << 30)")["error"]["name"] == "MemoryError"
    assert context.run("files = [open('/dev/null') for _ in range(200)]")["error"]["name"] == "OSError"
    assert context.value("1") == "1"
    context.delete()


def test_a_kernel_that_used_its_processor_time_says_so(guest: Guest) -> None:
    context = guest.create(limits={"cpu_s": 2}, restart_policy="never")
    run = context.run("while True: pass")
    assert run["failure"]["signal"] in ("SIGXCPU", "SIGKILL")
    context.delete()


def test_a_context_that_is_deleted_while_it_starts_is_gone(guest: Guest) -> None:
    with ThreadPoolExecutor(2) as pool:
        creating = pool.submit(guest.http.post, "/v1/contexts", json={"cwd": str(guest.home), "name": "short-lived"})
        found: list[str] = []

        def is_listed() -> bool:
            items = guest.call("GET", "/v1/contexts")["items"]
            found[:] = [entry["id"] for entry in items if entry["name"] == "short-lived"]
            return bool(found)

        wait_for(is_listed, "the context to be listed")
        guest.call("DELETE", f"/v1/contexts/{found[0]}")
        answer = creating.result()
    assert answer.status_code in (201, 410)
    guest.call("GET", f"/v1/contexts/{found[0]}", status=410)


def test_nothing_is_left_when_the_guest_is_told_to_stop(tmp_path: Path) -> None:
    with running_guest() as guest:
        context = guest.create()
        pids = [
            int(word)
            for word in context.value("import os, subprocess; (os.getpid(), subprocess.Popen(['sleep', '60']).pid)")
            .strip("()")
            .split(", ")
        ]
        assert all(map(is_running, pids))
    assert guest.process.returncode == 0
    assert not any(map(is_running, pids))


def test_kernels_end_with_a_guest_that_is_killed() -> None:
    with running_guest() as guest:
        pid = int(guest.create().value("import os; os.getpid()"))
        guest.process.kill()
        wait_for(lambda: not is_running(pid), "the kernel to end")


def test_soak_of_runs_and_contexts_leaves_no_descriptor(lone_guest: Guest) -> None:
    """sandbox-sdk#224: listener and process leaks."""

    def cycle() -> None:
        context = lone_guest.create()
        for _ in range(5):
            context.ok("print('x')")
        context.delete()

    cycle()
    before = lone_guest.health()["open_files"]
    for _ in range(4):
        cycle()
    # The guest looks at /proc now and then, which takes a descriptor for a moment.
    wait_for(lambda: bool(lone_guest.health()["open_files"] <= before), "the descriptors to be closed")
    left = [path.name for path in (lone_guest.home.parent / "r").iterdir()]
    assert [name for name in left if name.startswith("ctx-")] == []
    assert len([name for name in left if name.startswith("spare-")]) <= 1, "the one that waits for the next context"


def test_the_sockets_of_a_kernel_belong_to_its_user_alone(guest: Guest, context: Context) -> None:
    """Of this kernel alone: those of others may be on their way, or go, while somebody looks."""
    file = Path(context.value("import ipykernel; ipykernel.get_connection_file()").strip("'"))
    assert file.is_relative_to(guest.home.parent / "r")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_kernel_is_killed_before_the_guest_when_memory_runs_out(guest: Guest, context: Context) -> None:
    """jupyterlab#4273, enterprise_gateway#819: silent restart after running out of memory. The guest must live to tell."""
    score = Path(f"/proc/{context.value('import os; os.getpid()')}/oom_score_adj").read_text()
    assert int(score) > int(Path(f"/proc/{guest.process.pid}/oom_score_adj").read_text())


def test_the_kernel_does_not_see_the_guests_own_settings(context: Context) -> None:
    assert context.value("import os; [n for n in os.environ if n.startswith('CLOCHE_GUEST') or 'TOKEN' in n]") == "[]"


def test_nothing_of_ours_can_be_imported_by_accident(context: Context) -> None:
    code = "import sys; [p for p in sys.path if 'kernel_side' in p], '' in sys.path"
    assert context.value(code) == "([], True)"


def test_a_child_python_starts_clean(context: Context) -> None:
    run = context.ok("import subprocess, sys\n_ = subprocess.run([sys.executable, '-c', 'print(1)'])")
    assert text(run) == "1\n"
    assert result(context.ok("2")) == "2"
    assert subprocess.run([sys.executable, "-c", "pass"], check=True).returncode == 0
