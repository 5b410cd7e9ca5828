"""Around snapshots: terminals of a sandbox that is rolled back, and comparing where volumes are attached."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from cloche import Attachment, Client, NotFound, Sandbox, Stale, WaitTimeout

from .server_process import ServerProcess


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url, server.key) as made:
        yield made


@pytest.fixture
def sandbox(client: Client) -> Iterator[Sandbox]:
    with Sandbox.create(client=client, driver="gvisor") as made:
        yield made


def roll_back_elsewhere(client: Client, sandbox: Sandbox, snapshot: str) -> None:
    """By another client, so that the handle here does not know."""
    Sandbox.connect(sandbox.id, client=client).restore(snapshot)


def until_taken(shell: Attachment) -> None:
    """Until it is known to have arrived what was typed. Who still has something to deliver comes back by itself; who has not
    was told once that the sandbox was put to rest."""
    deadline = time.monotonic() + 60
    while shell._stream.has_input:
        assert time.monotonic() < deadline
        with suppress(WaitTimeout):
            shell.read(timeout_s=0.1)


def type_and_look(shell: Attachment, text: str) -> None:
    shell.send(text)
    shell.expect("never", timeout_s=60)


def test_a_terminal_that_is_rolled_back_under_its_viewer_is_stale_and_can_be_attached_anew(
    client: Client, sandbox: Sandbox
) -> None:
    """What is typed into the terminal of a life that is gone must reach no shell of the next one."""
    terminal = sandbox.terminals.create(command=["bash"])
    with terminal.attach() as shell:
        shell.send("kept=yes; echo $((40+2))\n")
        shell.expect("42")
        saved = sandbox.snapshot()
        shell.send("kept=lost; echo $((41+2))\n")
        shell.expect("43")
        roll_back_elsewhere(client, sandbox, saved.id)
        with pytest.raises(Stale):
            shell.expect("never", timeout_s=60)
        with pytest.raises(Stale):
            type_and_look(shell, "touch /workspace/typed-too-late\n")
    with pytest.raises(Stale), terminal.attach():
        pass
    sandbox.refresh()
    with terminal.attach() as shell:
        shell.send("echo $kept $((50+1)); ls /workspace; echo $((60+1))\n")
        seen = shell.expect("yes 51")
        rest = shell.expect("61")
    assert "typed-too-late" not in seen.string + rest.string


def test_a_terminal_made_after_the_snapshot_is_gone_with_its_life(client: Client, sandbox: Sandbox) -> None:
    saved = sandbox.snapshot()
    terminal = sandbox.terminals.create(command=["bash"])
    with terminal.attach() as shell:
        shell.send("echo $((40+2))\n")
        shell.expect("42")
        until_taken(shell)
        roll_back_elsewhere(client, sandbox, saved.id)
        with pytest.raises(Stale):
            shell.expect("never", timeout_s=60)
    sandbox.refresh()
    with pytest.raises(NotFound), terminal.attach():
        pass


def test_who_rolls_back_attaches_anew_without_a_refresh(sandbox: Sandbox) -> None:
    """The handle knows of the new life, but what is attached is of the one in which it was attached."""
    terminal = sandbox.terminals.create(command=["bash"])
    with terminal.attach() as shell:
        shell.send("kept=yes; echo $((40+2))\n")
        shell.expect("42")
        saved = sandbox.snapshot()
        shell.send("kept=lost; echo $((41+2))\n")
        shell.expect("43")
        sandbox.restore(saved)
        with pytest.raises(Stale):
            shell.expect("never", timeout_s=60)
    with terminal.attach() as shell:
        shell.send("echo $kept $((50+1))\n")
        shell.expect("yes 51", timeout_s=60)


@pytest.mark.parametrize("driver", ["gvisor", "runc"])
def test_volumes_are_compared_as_they_are_now_and_are_not_written_to(client: Client, driver: str) -> None:
    """They are part of no snapshot: both sides have the same one."""
    name = f"compared-{driver}"
    client.volumes.create(name, size_mb=16)
    with Sandbox.create(client=client, driver=driver, volumes={"/workspace/data": name}) as sandbox:
        sandbox.run("x = 1; open('/workspace/data/kept', 'w').write('one'); open('/workspace/own', 'w').write('one')")
        saved = sandbox.snapshot()
        sandbox.run("x = 2; open('/workspace/data/kept', 'w').write('two'); open('/workspace/own', 'w').write('two')")
        sandbox.run("open('/workspace/data/new', 'w').write('new')")
        found = client.compare(saved.id, sandbox.id)
        assert [(file.path, file.change) for file in found.files] == [("own", "changed")]
        if driver == "gvisor":
            assert [(one.name, one.change) for one in found.variables] == [("x", "changed")]
        assert client.compare(saved.id, sandbox.id, root="/workspace/data").files == []
        assert client.volumes.get(name).attached_to == [sandbox.id]
        said = sandbox.run(
            "import os; print(*sorted(os.listdir('/workspace/data')), open('/workspace/data/kept').read())"
        )
        assert said.stdout.split()[-3:] == ["kept", "new", "two"]
    client.snapshots.delete(saved)
    client.volumes.delete(name)
