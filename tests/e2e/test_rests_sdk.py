"""What the SDK waits for goes on while the sandbox is saved, rests for a moment, or is rolled back under it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from cloche import Client, Sandbox, output_bytes
from cloche.errors import SandboxNotRunning, Stale
from cloche.models import Event

from .server_process import ServerProcess

COUNT = 30
COUNTING = f"import time\nfor n in range({COUNT}):\n    print(n, flush=True)\n    time.sleep(0.1)\nn"
LINES = "".join(f"{n}\n" for n in range(COUNT))


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url, server.key) as made:
        yield made


@pytest.fixture
def sandbox(client: Client) -> Iterator[Sandbox]:
    with Sandbox.create(client=client, driver="gvisor") as made:
        made.run("x = 1")
        yield made


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def save(sandbox: Sandbox) -> None:
    sandbox.snapshot()


def rest(sandbox: Sandbox) -> None:
    sandbox.suspend()
    sandbox.resume()


def until_said(events: Iterator[Event], text: str) -> None:
    """Lines may come in several events, or several in one."""
    so_far = ""
    while text not in so_far:
        event = next(events)
        so_far += str(event.data["text"]) if event.type == "stdout" else ""


@pytest.mark.parametrize("disturb", [save, rest])
def test_nothing_that_is_waited_for_or_read_is_lost(
    sandbox: Sandbox, beside: ThreadPoolExecutor, disturb: Callable[[Sandbox], None]
) -> None:
    counting = sandbox.contexts.default.start_run(COUNTING)
    process = sandbox.processes.start(f"for n in $(seq 0 {COUNT - 1}); do echo $n; sleep 0.1; done; exit 3")
    second = sandbox.contexts.create(name="second")
    events: Future[str] = beside.submit(
        lambda: "".join(str(e.data["text"]) for e in counting.events() if e.type == "stdout")
    )
    output = beside.submit(lambda: b"".join(map(output_bytes, process.events())))
    waits = [
        beside.submit(lambda: counting.wait().text),
        beside.submit(lambda: second.run("import time; time.sleep(4); 7").text),
        beside.submit(lambda: sandbox.exec("sleep 4; echo out").stdout),
        beside.submit(lambda: process.wait_for_exit().code),
    ]
    with sandbox.files.watch() as watch, sandbox.terminals.create().attach() as shell:
        shell.send("echo ho-$((1 + 1))\n")
        shell.expect("ho-2")
        until_said(counting.events(), "5\n")
        disturb(sandbox)
        shell.send("echo ho-$((1 + 2))\n")
        shell.expect("ho-3")
        sandbox.files.write("made", b"")
        assert next(iter(watch)).path == "made"
    assert [wait.result(60) for wait in waits] == [str(COUNT - 1), "7", "out\n", 3]
    assert (events.result(60), output.result(60)) == (LINES, LINES.encode())


def test_who_reads_does_not_wake_and_who_types_does(sandbox: Sandbox) -> None:
    with sandbox.terminals.create().attach() as shell:
        shell.send("echo ho-$((1 + 1))\n")
        shell.expect("ho-2")
        sandbox.suspend()
        with pytest.raises(SandboxNotRunning):
            shell.expect("never", timeout_s=60)
        assert sandbox.refresh().state == "suspended"
        shell.send("echo ho-$((1 + 2))\n")
        shell.expect("ho-3")
    assert sandbox.refresh().state == "running"


def test_a_long_wait_does_not_wake_whom_somebody_put_to_rest(server: ServerProcess, beside: ThreadPoolExecutor) -> None:
    with Client(server.url, server.key, reconnect_s=2) as client, Sandbox.create(client=client, driver="gvisor") as box:
        # A cell without an end: one that is over when the sandbox is put to rest would be no long wait.
        events = box.contexts.default.start_run(COUNTING.replace(f"range({COUNT})", "range(10**6)")).events()
        until_said(events, "2\n")
        box.suspend()
        with pytest.raises(SandboxNotRunning):
            list(events)
        assert box.refresh().state == "suspended"


def test_who_rolls_back_goes_on_and_other_handles_are_stale(sandbox: Sandbox, client: Client) -> None:
    other, saved = Sandbox.connect(sandbox.id, client=client), sandbox.snapshot()
    sandbox.run("x = 2")
    sandbox.restore(saved)
    assert sandbox.run("x").text == "1"
    for act in (lambda: other.run("x = 3"), lambda: other.files.write("a", b""), other.terminals.list):
        with pytest.raises(Stale, match="refresh"):
            act()
    other.refresh()
    assert (other.run("x").text, other.files.glob("*")) == ("1", [])


def test_children_differ_from_their_source_in_what_they_did(sandbox: Sandbox, client: Client, tmp_path: Path) -> None:
    with sandbox.fork(2, envs=[{"N": "1"}, {"N": "2"}]) as children:
        for child in children:
            child.run("import os; x = os.environ['N']; open('n', 'w').write(x)")
        found = client.compare(*children, diffs=True)
        assert [(file.path, file.change) for file in found.files] == [("n", "changed")]
        assert "+2" in (found.files[0].diff or "")
        assert [(v.name, v.before and v.before.summary) for v in found.variables] == [("x", "'1'")]
    saved = sandbox.snapshot()
    client.snapshots.export(saved, tmp_path / "saved.tar")
    client.snapshots.delete(saved)
    with Sandbox.create(client=client, snapshot=client.snapshots.import_(tmp_path / "saved.tar")) as again:
        assert again.run("x").text == "1"
