"""Forks: one instant of a live sandbox, many sandboxes; each goes on from there, alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from . import inside
from .server_process import ServerProcess
from .test_terminals import attach, open_terminal

CHILDREN = 20 if inside.FULL else 3
FRAME_MB = 200 if inside.FULL else 20

FRAME = f"""
import numpy, pandas, random, threading, time
frame = pandas.DataFrame({{"a": numpy.arange({FRAME_MB} * 65536), "b": 1.5}})
total = float(frame["a"].sum())
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        time.sleep(0.01)
threading.Thread(target=tick, daemon=True).start()
print(frame.memory_usage(deep=True).sum() // 2**20)
"""
CHECK = 'print(len(frame), float(frame["a"].sum()) == total, frame.attrs.get("mine"), ticks > 0)'

NO_QUESTIONS = "set t_RV= t_u7= t_RF= t_RB="
"""For vim 9.0. Nobody answers what it asks of its terminal here, so it looks for the answers once more before it writes
and quits; and where that look (a wait of 0 ms) begins 1 ms late, it waits for the next key instead, for ever."""


@pytest.fixture
def source(client: httpx.Client, make_sandbox: Callable[..., str]) -> Iterator[str]:
    """With a frame and a web server; its children are deleted with it."""
    sandbox_id = make_sandbox(driver="gvisor", resources={"memory_mb": 1024})
    assert int(inside.run(client, sandbox_id, FRAME)) >= FRAME_MB - 1
    inside.write(client, sandbox_id, "/workspace/note.txt", "a line of the source\n")
    inside.write(client, sandbox_id, "/workspace/site/index.html", "the site of the source")
    inside.serve(client, sandbox_id, 8000, "/workspace/site")
    yield sandbox_id
    for item in client.get("/v1/sandboxes?limit=200").json()["items"]:
        if item["origin"]["id"] == sandbox_id:
            client.delete(f"/v1/sandboxes/{item['id']}")


def test_children_have_the_frame_the_terminal_and_the_server_and_share_nothing(
    server: ServerProcess, client: httpx.Client, source: str
) -> None:
    terminal = open_terminal(client, source, "vim", "--cmd", NO_QUESTIONS, "/workspace/note.txt")
    viewer = attach(server, source, terminal)
    viewer.until("a line of the source")
    children = inside.fork(client, source, count=CHILDREN, envs=[{"N": str(n)} for n in range(CHILDREN)])
    assert len(set(children)) == CHILDREN

    def change(index: int) -> None:
        """Everything a child has is as it was, and becomes its own."""
        child = children[index]
        frame = f"{FRAME_MB * 65536} True None True"
        assert inside.run(client, child, CHECK) == frame
        inside.run(client, child, f'frame.attrs["mine"] = {index}; frame.loc[0, "a"] = 0')
        assert inside.run(client, child, 'import os; print(os.environ["N"])') == str(index)
        assert inside.fetch(client, child, 8000, "index.html") == "the site of the source"
        inside.write(client, child, "/workspace/site/index.html", f"site {index}")
        editor = attach(server, child, terminal)
        editor.until("a line of the source")
        editor.type(f"Oof child {index}\x1b:wq\r")
        assert editor.until_closed() == 1000
        editor.close()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(change, range(CHILDREN)))
    for index, child in enumerate(children):
        assert inside.run(client, child, CHECK) == f"{FRAME_MB * 65536} True {index} True"
        assert inside.fetch(client, child, 8000, "index.html") == f"site {index}"
        assert inside.read(client, child, "/workspace/note.txt") == f"of child {index}\na line of the source\n"
    assert inside.run(client, source, CHECK) == f"{FRAME_MB * 65536} True None True"
    assert inside.fetch(client, source, 8000, "index.html") == "the site of the source"
    assert inside.read(client, source, "/workspace/note.txt") == "a line of the source\n"
    viewer.cut()  # streams end at a fork, as at a restart of the server
    viewer.attach()
    viewer.type(":q\r")  # it was in vim all the time
    assert viewer.until_closed() == 1000
    viewer.close()


def test_a_cell_that_runs_goes_on_in_source_and_children(
    client: httpx.Client, make_sandbox: Callable[..., str]
) -> None:
    """It runs until a file is there, so it cannot be over before the fork, however long that takes."""
    sandbox_id = make_sandbox(driver="gvisor")
    url = f"/v1/sandboxes/{sandbox_id}/contexts/default/runs"
    started = client.post(f"{url}?wait_s=0", json={"code": UNTIL_TOLD}).json()
    deadline = time.monotonic() + 60
    while "3\n" not in printed(run := client.get(f"{url}/{started['id']}").json()):
        assert time.monotonic() < deadline, run
        time.sleep(0.02)
    [child] = inside.fork(client, sandbox_id)
    try:
        for one in (sandbox_id, child):
            path = f"/v1/sandboxes/{one}/contexts/default/runs/{started['id']}"
            before = client.get(path).json()
            assert before["state"] == "running"
            inside.write(client, one, "/workspace/told", "")
            done = client.get(f"{path}?wait_s=60").json()
            assert done["status"] == "ok"
            numbers = printed(done).split()
            assert numbers == [str(n) for n in range(len(numbers))]
            assert len(numbers) >= len(printed(before).split())
    finally:
        client.delete(f"/v1/sandboxes/{child}")


UNTIL_TOLD = """
import os, time
n = 0
while not os.path.exists("/workspace/told"):
    print(n, flush=True)
    n += 1
    time.sleep(0.1)
"""


def printed(run: dict[str, Any]) -> str:
    return "".join(output["text"] for output in run["outputs"] if output["type"] == "stdout")


def test_each_child_has_its_own_randomness_and_clock(client: httpx.Client, make_sandbox: Callable[..., str]) -> None:
    sandbox_id = make_sandbox(driver="gvisor")
    inside.run(client, sandbox_id, "import random, numpy, time; random.seed(1); numpy.random.seed(1)")
    children = inside.fork(client, sandbox_id, count=2)
    try:
        code = "print(random.random(), numpy.random.random())"
        said = [inside.run(client, one, code) for one in (sandbox_id, *children)]
        assert len(set(said)) == 3
        assert said[0].startswith("0.134364")  # the source goes on as it was seeded
        for child in children:
            before = time.time()
            now = float(inside.run(client, child, "print(time.time())"))
            assert before - 20 < now < time.time() + 20  # gVisor sets its clock slowly; the fork itself took less
    finally:
        for child in children:
            client.delete(f"/v1/sandboxes/{child}")


def test_files_alone_can_be_forked_on_both_drivers(
    client: httpx.Client, make_sandbox: Callable[..., str], driver: str
) -> None:
    sandbox_id = make_sandbox(driver=driver)
    inside.write(client, sandbox_id, "/workspace/a.txt", "one")
    inside.run(client, sandbox_id, "x = 1")
    inside.serve(client, sandbox_id, 8000, "/workspace")
    [child] = inside.fork(client, sandbox_id, memory=False)
    try:
        assert inside.read(client, child, "/workspace/a.txt") == "one"
        assert inside.run(client, child, "print('x' in globals())") == "False"
        processes = client.get(f"/v1/sandboxes/{child}/processes").json()["items"]
        assert [process for process in processes if process["state"] == "running"] == []
        assert inside.run(client, sandbox_id, "print(x)") == "1"
        assert "one" in inside.fetch(client, sandbox_id, 8000, "a.txt")
    finally:
        client.delete(f"/v1/sandboxes/{child}")
