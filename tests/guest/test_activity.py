"""Whether a sandbox works: what counts, and what does not."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from guest_process import Context, Guest, Json, running_guest, wait_for
from processes_of import Processes

sys.path.insert(0, str(Path(__file__).parent / "terminals"))

from viewer import Viewer

from cloche_guest.activity import SHARE, CpuMeter, Tree

RECENT_S = 1.5
"""Instead of ten seconds, or these tests would take minutes."""


@pytest.fixture(scope="module")
def quiet() -> Iterator[Guest]:
    """A guest of this file's own: other tests would make it busy."""
    with running_guest(before=f"from cloche_guest import activity; activity.RECENT_S = {RECENT_S}") as guest:
        yield guest


def look(guest: Guest) -> Json:
    found = guest.call("GET", "/v1/activity")
    assert found["busy"] == bool(found["reasons"])
    assert found["idle_s"] == 0 or not found["busy"]
    return found


def idle(guest: Guest) -> None:
    wait_for(lambda: not look(guest)["busy"], "the guest to be idle")


def test_a_new_sandbox_does_nothing(quiet: Guest) -> None:
    assert look(quiet)["busy"] is False


def test_a_run_works_from_the_queue_to_its_end_and_an_idle_kernel_does_not(quiet: Guest) -> None:
    context = quiet.create()
    context.submit("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    last = context.submit("time.sleep(0.2)")
    assert f"run:{context.id}" in look(quiet)["reasons"]
    (quiet.home / "go").touch()
    context.wait(last)
    idle(quiet)
    assert look(quiet)["idle_s"] >= RECENT_S
    context.delete()


def test_a_run_that_waits_for_input_is_idle_and_works_again_when_it_has_it(quiet: Guest) -> None:
    """A question that nobody is there to answer must not keep a sandbox for ever."""
    context = quiet.create()
    run = context.submit("input()\nwhile True: pass", allow_stdin=True)
    context.until(run, "input_request")
    idle(quiet)
    quiet.call("POST", f"{context.path}/runs/{run}/input", {"text": ""})
    assert look(quiet)["reasons"] == [f"run:{context.id}"]
    context.delete()


def test_work_that_a_cell_left_behind_counts_and_sleep_does_not(quiet: Guest) -> None:
    context = quiet.create()
    context.ok("import subprocess, sys; asleep = subprocess.Popen(['sleep', '600'])")
    idle(quiet)
    context.ok("worker = subprocess.Popen([sys.executable, '-c', 'while True: pass'])")
    threading.Event().wait(RECENT_S)  # the run itself counts for so long
    wait_for(lambda: look(quiet)["reasons"] == [f"context:{context.id}"], "the worker to count")
    context.delete()
    idle(quiet)


def test_processes_work_while_they_use_cpu_or_write_and_services_never(quiet: Guest) -> None:
    processes = Processes(quiet)
    service = {"name": "busy", "shell": "while :; do :; done"}
    quiet.call("POST", "/v1/services", service, status=201)
    asleep = processes.start("sleep", "600")
    idle(quiet)
    writes = processes.start(shell="while sleep 0.3; do echo x; done")
    spins = processes.start(shell="while :; do :; done")
    look(quiet)
    threading.Event().wait(RECENT_S)  # starting counts for so long, and so does the first look at a tree
    working = {f"process:{writes}", f"process:{spins}"}
    wait_for(lambda: set(look(quiet)["reasons"]) == working, "the two that work to count, and no other")
    for process in (asleep, writes, spins):
        processes.delete(process)
    quiet.call("DELETE", "/v1/services/busy")
    assert look(quiet)["busy"] is False


def test_a_terminal_works_for_keys_and_output_but_not_for_viewers(quiet: Guest) -> None:
    terminal = quiet.call("POST", "/v1/terminals", {"argv": ["cat"]}, status=201)
    path = f"/v1/terminals/{terminal['id']}"
    idle(quiet)
    viewer = Viewer(f"ws://127.0.0.1:{quiet.port}{path}/attach")
    with contextlib.closing(viewer):
        quiet.call("POST", path + "/resize", {"cols": 100, "rows": 40})
        assert look(quiet)["busy"] is False

        def works() -> bool:
            viewer.type(b"x")  # again and again: each counts for so short a time
            return bool(look(quiet)["reasons"] == [f"terminal:{terminal['id']}"])

        wait_for(works, "the terminal to work")
    quiet.call("DELETE", path)


def test_readers_are_no_work(quiet: Guest) -> None:
    idle(quiet)
    with quiet.http.stream("GET", "/v1/events") as stream:
        assert stream.status_code == 200
        assert look(quiet)["busy"] is False


ONE, TWO = Tree(1, "a"), Tree(2, "b")


def test_cpu_below_the_share_is_no_use_of_cpu() -> None:
    meter = CpuMeter()
    assert meter.look({ONE: 5.0, TWO: 5.0}, 100.0) == {ONE: 100.0, TWO: 100.0}
    used = meter.look({ONE: 5.0 + 10 * SHARE * 0.9, TWO: 5.0 + 10 * SHARE * 1.1}, 110.0)
    assert used == {ONE: 100.0, TWO: 110.0}


def test_looks_that_follow_each_other_closely_are_one_look() -> None:
    meter = CpuMeter()
    meter.look({ONE: 0.0}, 100.0)
    assert meter.look({ONE: 0.01}, 100.1) == {ONE: 100.0}  # one tick in 0.1 s is 10 %, and chance
    assert meter.look({ONE: 0.01}, 102.0) == {ONE: 100.0}
    assert meter.look({ONE: 1.0}, 104.0) == {ONE: 104.0}


def test_a_tree_that_lost_a_process_has_worked_and_one_that_is_gone_is_forgotten() -> None:
    meter = CpuMeter()
    meter.look({ONE: 9.0, TWO: 1.0}, 100.0)
    assert meter.look({ONE: 3.0}, 110.0) == {ONE: 110.0}
    assert meter.look({TWO: 1.0}, 120.0) == {TWO: 120.0}


def test_everything_ends_on_request_and_services_stay_declared() -> None:
    with running_guest() as guest:
        processes = Processes(guest)
        context: Context = guest.create()
        context.ok("import subprocess; subprocess.Popen(['sleep', '600'])")
        process = processes.start("sleep", "600")
        terminal = guest.call("POST", "/v1/terminals", {"argv": ["cat"]}, status=201)["id"]
        guest.call("POST", "/v1/services", {"name": "web", "argv": ["sleep", "600"]}, status=201)
        assert guest.http.post("/v1/end-all", json={"start_services": True}).status_code == 204
        guest.call("GET", context.path, status=410)
        guest.call("GET", f"/v1/terminals/{terminal}", status=410)
        assert processes.get(process)["state"] == "finished"
        wait_for(lambda: guest.call("GET", "/v1/services")["items"][0]["state"] == "ready", "the service")
        assert guest.http.post("/v1/end-all").status_code == 204
        assert guest.call("GET", "/v1/services")["items"] == []
        assert guest.create().value("1 + 1") == "2"
        guest.call("POST", "/v1/terminals", {"argv": ["cat"]}, status=201)
