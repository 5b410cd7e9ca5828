"""States, snapshots and forks of a sandbox, and the lives its handles are of."""

from __future__ import annotations

import gc
import io
from pathlib import Path

import pytest
from lifecycle_app import ARCHIVE
from protocol_app import KEY, App, Fault, Server

from cloche import AsyncClient, AsyncSandbox, Client, LifecyclePolicy, Retention, Sandbox
from cloche.errors import Gone, NotFound, SandboxStartFailed, SnapshotFailed, Stale, UnsupportedCapability
from cloche.models import SandboxState


@pytest.fixture
def sandbox(client: Client) -> Sandbox:
    return Sandbox.create(client=client, name="box")


def test_states_change_and_the_handle_knows(sandbox: Sandbox) -> None:
    assert sandbox.pause().state is SandboxState.PAUSED
    assert sandbox.info.state is SandboxState.PAUSED
    assert sandbox.resume().state is SandboxState.RUNNING
    assert sandbox.suspend().paused_s == 0.1
    assert sandbox.resume().epoch == sandbox.info.epoch == "e1.again"
    assert sandbox.stop().state is SandboxState.STOPPED


def test_a_change_whose_answer_is_lost_is_asked_for_again(sandbox: Sandbox, app: App) -> None:
    app.faults.append(Fault("forget", "POST", "/suspend"))
    assert sandbox.suspend().state is SandboxState.SUSPENDED
    assert [path for _, path in app.log].count(f"/v1/sandboxes/{sandbox.id}/suspend") == 2


def test_a_lifecycle_is_given_and_changed(client: Client, app: App) -> None:
    made = Sandbox.create(client=client, lifecycle={"idle_timeout_s": 60, "auto_resume": False})
    assert app.bodies == [{"lifecycle": {"idle_timeout_s": 60.0, "auto_resume": False}}]
    made.update(lifecycle=LifecyclePolicy(max_lifetime_s=3600))
    assert made.info.lifecycle.max_lifetime_s == 3600


def test_a_sandbox_is_made_from_a_snapshot_or_a_template(sandbox: Sandbox, client: Client, app: App) -> None:
    saved = sandbox.snapshot("first")
    app.bodies.clear()
    assert Sandbox.create(client=client, snapshot=saved, warm=False).info.origin.id == saved.id
    assert Sandbox.create(client=client, template="data@2").info.origin.warm
    assert app.bodies == [{"snapshot": saved.id, "warm": False}, {"template": "data@2"}]


def test_a_snapshot_is_saved_as_asked(sandbox: Sandbox, app: App) -> None:
    app.bodies.clear()
    saved = sandbox.snapshot("one", labels={"k": "v"}, memory=False, retention=Retention(keep_last=3))
    assert (saved.name, saved.memory, saved.paused_s) == ("one", False, 0.12)
    sandbox.snapshot(retention={"ttl_s": 60})
    assert app.bodies == [
        {"name": "one", "labels": {"k": "v"}, "memory": False, "retention": {"keep_last": 3}},
        {"retention": {"ttl_s": 60.0}},
    ]


def test_a_snapshot_that_failed_is_said(sandbox: Sandbox, app: App) -> None:
    app.faults.append(Fault("error", "POST", "/snapshots", answer=SnapshotFailed("disk")))
    with pytest.raises(SnapshotFailed):
        sandbox.snapshot()
    assert sandbox.snapshots() == []


@pytest.mark.parametrize("kind", ["refuse", "forget"])
def test_what_is_asked_for_again_after_a_lost_answer_is_made_once(sandbox: Sandbox, app: App, kind: str) -> None:
    before = len(app.sandboxes)
    app.faults += [Fault(kind, "POST", "/snapshots"), Fault(kind, "POST", "/fork")]
    saved = sandbox.snapshot()
    assert [each.id for each in sandbox.snapshots()] == [saved.id]
    children = sandbox.fork(2)
    assert len(app.sandboxes) == before + 2
    assert sandbox.snapshot().id != saved.id
    assert sandbox.fork(2, idempotency_key="k")[0].id == sandbox.fork(2, idempotency_key="k")[0].id
    assert sandbox.snapshot(idempotency_key="k").id == sandbox.snapshot(idempotency_key="k").id
    assert {child.id for child in children}.isdisjoint({child.id for child in sandbox.fork(2)})


def test_snapshots_are_listed_over_all_pages_and_as_a_tree(sandbox: Sandbox, client: Client) -> None:
    other = Sandbox.create(client=client).snapshot("other")
    made = [sandbox.snapshot(f"n{number}") for number in range(3)]
    assert [saved.id for saved in sandbox.snapshots()] == [saved.id for saved in made[::-1]]
    assert len(client.snapshots.list()) == 4
    assert client.snapshots.list(sandbox=sandbox, limit=1) == [made[2]]
    assert client.snapshots.list(name="other") == [other]
    assert [(node.snapshot.name, node.depth) for node in sandbox.snapshot_tree().nodes] == [
        ("n0", 0),
        ("n1", 1),
        ("n2", 2),
    ]


def test_snapshots_are_got_and_deleted_by_object_id_and_name(sandbox: Sandbox, client: Client) -> None:
    saved = sandbox.snapshot("one")
    assert client.snapshots.get(saved) == client.snapshots.get(saved.id) == client.snapshots.get("one") == saved
    assert client.snapshots.delete("one") == saved
    with pytest.raises(NotFound):
        client.snapshots.get("one")


def test_a_snapshot_goes_out_and_in_as_a_file(sandbox: Sandbox, client: Client, tmp_path: Path) -> None:
    saved, target = sandbox.snapshot("one"), tmp_path / "one.tar"
    assert client.snapshots.export(saved, target) == len(ARCHIVE)
    assert target.read_bytes() == ARCHIVE
    assert target.stat().st_mode & 0o077 == 0, "it holds memory and environment"
    assert client.snapshots.import_(target, name="two").name == "two"
    stream = io.BytesIO()
    client.snapshots.export("one", stream)
    assert client.snapshots.import_(io.BytesIO(stream.getvalue())).sandbox_id is None


def test_an_export_that_fails_leaves_no_file(sandbox: Sandbox, client: Client, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        client.snapshots.export("nothing", tmp_path / "x.tar")
    assert list(tmp_path.iterdir()) == []


def test_who_rolls_back_goes_on_and_others_are_stale(sandbox: Sandbox, client: Client) -> None:
    other, saved = Sandbox.connect("box", client=client), sandbox.snapshot()
    context = other.contexts.default
    assert sandbox.restore(saved).parent == saved.id
    assert sandbox.run("1+1").text == "2"
    for act in (lambda: other.run("1+1"), lambda: context.run("1+1"), other.contexts.list):
        with pytest.raises(Stale) as caught:
            act()
        assert "refresh" in (caught.value.hint or "")
    other.refresh()
    assert (other.run("1+1").text, context.run("1+1").text) == ("2", "2")


def test_only_looking_anew_makes_a_stale_handle_good(sandbox: Sandbox, client: Client) -> None:
    """A change of its name or its state says nothing of what its user believes to be in its memory."""
    other = Sandbox.connect("box", client=client)
    sandbox.restore(sandbox.snapshot())
    other.update(name="renamed")
    other.resume()
    with pytest.raises(Stale):
        other.run("1+1")


def test_streams_say_of_which_life_they_are(sandbox: Sandbox, client: Client) -> None:
    run = Sandbox.connect("box", client=client).contexts.default.start_run("1+1")
    sandbox.restore(sandbox.snapshot())
    with pytest.raises(Stale):
        list(run.events())


def test_memory_goes_on_over_suspend_and_ends_with_stop(sandbox: Sandbox, client: Client) -> None:
    other = Sandbox.connect("box", client=client)
    sandbox.suspend()
    sandbox.resume()
    assert (sandbox.run("1+1").text, other.run("1+1").text) == ("2", "2")
    sandbox.stop()
    sandbox.resume()
    assert sandbox.run("1+1").text == "2", "who stopped it knows"
    with pytest.raises(Stale):
        other.run("1+1")


def test_a_fork_is_a_sequence_of_sandboxes(sandbox: Sandbox, app: App) -> None:
    app.bodies.clear()
    children = sandbox.fork(2, names=["a", "b"], env={"A": "1"}, envs=[{"N": "0"}, {"N": "1"}], labels={"k": "v"})
    assert app.bodies == [
        {
            "count": 2,
            "names": ["a", "b"],
            "env": {"A": "1"},
            "envs": [{"N": "0"}, {"N": "1"}],
            "labels": {"k": "v"},
        }
    ]
    assert [child.name for child in children] == ["a", "b"]
    assert (len(children), children[1].name, [c.name for c in children[:1]]) == (2, "b", ["a"])
    assert (children.paused_s, children.ready_s, dict(children.errors)) == (0.15, 0.9, {})
    assert children.raise_for_errors() is children
    assert children[0].run("1+1").text == "2"


def test_each_child_has_its_own_outcome(sandbox: Sandbox) -> None:
    children = sandbox.fork(3, names=["a", "fails", "c"])
    assert [child.name for child in children.sandboxes] == ["a", "c"]
    assert isinstance(children.children[1], SandboxStartFailed)
    assert (list(children.errors), children[2].name) == ([1], "c")
    for take in (lambda: children[1], lambda: list(children), children.raise_for_errors):
        with pytest.raises(SandboxStartFailed, match="did not start"):
            take()
    assert repr(children) == "<ForkResult 2 of 3 children>"


def test_the_only_child_failing_is_an_error_of_the_fork(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxStartFailed):
        sandbox.fork(names=["fails"])
    assert sandbox.fork(names=["works"])[0].name == "works"


def test_leaving_a_fork_deletes_the_children_alone(sandbox: Sandbox, app: App) -> None:
    with sandbox.fork(2) as children:
        children[0].delete()
    assert {app.sandboxes[child.id].state for child in children} == {SandboxState.DELETED}
    assert app.sandboxes[sandbox.id].state is SandboxState.RUNNING


def test_what_the_driver_cannot_is_said(sandbox: Sandbox, app: App) -> None:
    app.faults.append(Fault("error", "POST", "/fork", answer=UnsupportedCapability("no memory")))
    with pytest.raises(UnsupportedCapability):
        sandbox.fork(2)


def test_children_outlive_the_handle_of_their_source(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox made without a client brings one along, which its children use, too."""
    monkeypatch.setenv("CLOCHE_URL", server.url)
    monkeypatch.setenv("CLOCHE_API_KEY", KEY)
    with Sandbox.create() as source:
        child = source.fork()[0]
    with child:
        assert child.run("1+1").text == "2"
    with pytest.raises(RuntimeError, match="closed"):
        child.refresh()
    gc.collect()


def test_comparing_takes_handles_snapshots_and_ids(sandbox: Sandbox, client: Client, app: App) -> None:
    saved = sandbox.snapshot()
    app.bodies.clear()
    found = client.compare(saved, sandbox, root="/tmp", diffs=True)
    assert [file.change for file in found.files] == ["added", "changed", "removed"]
    assert client.compare(sandbox.id, sandbox.id).files == []
    assert app.bodies == [
        {"before": saved.id, "after": sandbox.id, "root": "/tmp", "diffs": True},
        {"before": sandbox.id, "after": sandbox.id},
    ]


async def test_awaiting_does_the_same(async_client: AsyncClient, app: App, tmp_path: Path) -> None:
    async with AsyncSandbox.create(client=async_client, name="box") as sandbox:
        assert (await sandbox.suspend()).state is SandboxState.SUSPENDED
        await sandbox.resume()
        saved = await sandbox.snapshot("one")
        other = await AsyncSandbox.connect("box", client=async_client)
        await sandbox.restore("one")
        with pytest.raises(Stale):
            await other.run("1+1")
        await other.refresh()
        assert (await other.run("1+1")).text == "2"
        assert await async_client.snapshots.export(saved, tmp_path / "one.tar") == len(ARCHIVE)
        assert (await async_client.snapshots.import_(tmp_path / "one.tar")).sandbox_id is None
        assert len((await async_client.compare(saved, sandbox)).files) == 3
        async with await sandbox.fork(2) as children:
            assert [(await child.run("1+1")).text for child in children] == ["2", "2"]
        assert {app.sandboxes[child.id].state for child in children} == {SandboxState.DELETED}
        with pytest.raises(SandboxStartFailed):
            await sandbox.fork(names=["fails"])
    with pytest.raises(Gone):
        await other.refresh()
