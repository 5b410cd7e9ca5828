"""`Sandbox`, `Context` and `RunHandle` against a real HTTP server that plays the protocol."""

from __future__ import annotations

import threading
import time

import pytest
from protocol_app import App, Server

from cloche import (
    Client,
    Conflict,
    Context,
    Gone,
    InvalidRequest,
    NotFound,
    Resources,
    RunStatus,
    Sandbox,
    WaitTimeout,
)
from cloche.models import Event, SandboxState


@pytest.fixture
def sandbox(client: Client) -> Sandbox:
    return Sandbox.create(client=client, name="box")


def test_what_is_asked_for_is_what_is_sent_and_nothing_else(client: Client, app: App) -> None:
    Sandbox.create(
        "python", client=client, name="a", driver="runc", resources={"memory_mb": 256}, env={"A": "1"},
        labels={"k": "v"}, metadata={"m": [1]}, sudo=False,
    )  # fmt: skip
    Sandbox.create(client=client, resources=Resources(cpus=1))
    assert app.bodies == [
        {
            "image": "python", "name": "a", "driver": "runc", "resources": {"memory_mb": 256}, "env": {"A": "1"},
            "labels": {"k": "v"}, "metadata": {"m": [1]}, "sudo": False,
        },
        {"resources": {"cpus": 1.0}},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options", [{"name": "no spaces"}, {"resources": {"cpus": -1}}, {"colour": "red"}, {"driver": "docker"}]
)
def test_a_bad_option_is_refused_before_anything_is_sent(client: Client, app: App, options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        Sandbox.create(client=client, **options)  # type: ignore[arg-type]
    assert app.log == []


def test_leaving_deletes_a_sandbox_that_was_made_here(client: Client, app: App) -> None:
    with Sandbox.create(client=client) as made:
        assert made.run("1+1").text == "2"
    assert app.sandboxes[made.id].state is SandboxState.DELETED


def test_leaving_keeps_a_sandbox_that_was_connected_to(sandbox: Sandbox, client: Client, app: App) -> None:
    with Sandbox.connect(sandbox.id, client=client) as again:
        assert again.name == "box"
    assert app.sandboxes[sandbox.id].state is SandboxState.RUNNING


def test_leaving_accepts_that_it_is_deleted_already(client: Client) -> None:
    with Sandbox.create(client=client) as made:
        made.delete()
        with pytest.raises(Gone):
            made.delete()


def test_an_error_in_the_block_is_not_hidden_by_a_lost_server(server: Server) -> None:
    with Client(server.url, "test-key", reconnect_s=0) as client, pytest.raises(KeyError):  # noqa: PT012, SIM117
        with Sandbox.create(client=client):
            server.stop()
            raise KeyError("mine")


def test_it_is_found_by_id_and_by_name(sandbox: Sandbox, client: Client) -> None:
    assert Sandbox.connect("box", client=client).id == sandbox.id
    assert Sandbox.connect(sandbox.id, client=client).name == "box"


def test_a_name_may_look_like_an_id(client: Client) -> None:
    made = Sandbox.create(client=client, name="abcdefghij0123456789")
    assert Sandbox.connect("abcdefghij0123456789", client=client).id == made.id


@pytest.mark.parametrize("unknown", ["nobody", "zzzzzzzzzzzzzzzzzzzz"])
def test_an_unknown_sandbox_is_not_found(client: Client, unknown: str) -> None:
    with pytest.raises(NotFound):
        Sandbox.connect(unknown, client=client)


def test_update_and_refresh_change_what_the_handle_says(sandbox: Sandbox, client: Client) -> None:
    Sandbox.connect(sandbox.id, client=client).update(name="other", labels={"a": "b"}, metadata={"x": 1})
    assert sandbox.name == "box"
    assert sandbox.refresh().labels == {"a": "b"}
    assert sandbox.name == "other"
    assert "'other' running on gvisor" in repr(sandbox)
    assert sandbox.update(labels={}).name == "other"
    with pytest.raises(InvalidRequest, match="no_name"):
        sandbox.update(name="third", no_name=True)
    assert sandbox.refresh().name == "other"
    assert sandbox.update(no_name=True).name is None


def test_lists_run_over_all_pages(client: Client) -> None:
    made = [Sandbox.create(client=client, labels={"n": str(n), "all": "yes"}).id for n in range(5)]
    assert [found.id for found in client.list_sandboxes()] == made[::-1]
    assert [found.id for found in client.list_sandboxes(limit=3)] == made[:1:-1]
    assert [found.id for found in client.list_sandboxes(labels={"n": "1", "all": "yes"})] == [made[1]]
    assert client.list_sandboxes(state="failed") == []


def test_the_server_tells_about_itself(client: Client) -> None:
    assert client.health().status == "ok"
    assert client.info().default_driver == "gvisor"
    assert client.images()[0].name == "python"


def test_keys_are_made_listed_and_revoked(client: Client) -> None:
    key = client.keys.create("bob", role="viewer", label="ci")
    assert (key.secret, key.role) == ("clk-secret", "viewer")
    assert [listed.id for listed in client.keys.list()] == [key.id]
    assert client.keys.revoke(key.id).revoked_at is not None


def test_contexts_are_made_found_and_listed(sandbox: Sandbox) -> None:
    made = sandbox.contexts.create(name="second", cwd="/tmp", env={"A": "1"}, limits={"memory_mb": 128})
    assert made.info is not None
    assert (made.info.cwd, made.info.limits.memory_mb) == ("/tmp", 128)
    assert sandbox.contexts.get(made.id).id == made.id
    assert sandbox.contexts.default.info is None
    assert sandbox.contexts.default.refresh().id == "default"
    assert sorted(context.id for context in sandbox.contexts.list()) == sorted([made.id, "default"])
    made.delete()
    with pytest.raises(NotFound):
        sandbox.contexts.get(made.id)


def test_a_context_answers_questions(sandbox: Sandbox) -> None:
    context = sandbox.contexts.default
    assert context.complete("pr").matches == ["print"]
    assert context.inspect("print", source=True).found
    assert context.history()[0].code == "1+1"
    assert context.variables().variables == []
    assert context.restart().generation == 2
    assert context.interrupt().state == "idle"
    assert context.runs() == []
    assert "default of" in repr(context)


def test_a_run_tells_its_watchers_while_it_goes_on(sandbox: Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    events: list[Event] = []
    result = sandbox.run("print a\nwarn b\nvalue c", on_event=events.append, on_stdout=out.append, on_stderr=err.append)
    assert (out, err, result.text) == (["a\n"], ["b\n"], "c")
    assert [event.type for event in events] == ["started", "stdout", "stderr", "result", "finished"]


def test_an_error_in_a_watcher_reaches_the_caller_and_the_run_goes_on(sandbox: Sandbox) -> None:
    def fail(_text: str) -> None:
        raise KeyError("watcher")

    with pytest.raises(KeyError):
        sandbox.run("print a\nprint b", on_stdout=fail)
    assert sandbox.run("1+1").ok


def test_input_is_asked_for(sandbox: Sandbox) -> None:
    asked: list[tuple[str, bool]] = []

    def answer(prompt: str, password: bool) -> str:
        asked.append((prompt, password))
        return "Ada"

    assert sandbox.run("input name?\ninput again?", input=answer).stdout == "read Ada\nread Ada\n"
    assert asked == [("name?", False), ("again?", False)]


def test_stdin_is_allowed_only_for_those_who_answer(sandbox: Sandbox, app: App) -> None:
    sandbox.run("1+1")
    sandbox.run("1+1", input=lambda _prompt, _password: "")
    sandbox.run("1+1", allow_stdin=False)
    assert [played.body.allow_stdin for played in app.runs.values()] == [False, True, False]


def test_what_the_code_raises_is_in_the_result(sandbox: Sandbox) -> None:
    result = sandbox.run("print before\nraise ValueError oops\nprint never")
    assert (result.ok, result.stdout) == (False, "before\n")
    assert result.error is not None
    assert (result.error.name, result.error.value) == ("ValueError", "oops")


@pytest.fixture
def context(sandbox: Sandbox) -> Context:
    return sandbox.contexts.default


def test_a_started_run_is_watched_and_interrupted(context: Context) -> None:
    handle = context.start_run("print a\nhang")
    events = handle.events()
    assert [next(events).type, next(events).type] == ["started", "stdout"]
    handle.interrupt()
    assert [event.type for event in events] == ["error", "finished"]
    assert handle.wait().status is RunStatus.INTERRUPTED


def test_another_client_can_take_a_run_over(context: Context, server: Server) -> None:
    handle = context.start_run("print a\nhang")
    with Client(server.url, "test-key") as other:
        again = Sandbox.connect("box", client=other).contexts.default.get_run(handle.id)
        assert not again.result().finished
        assert again.interrupt() is not None
    assert handle.wait().status is RunStatus.INTERRUPTED


def test_events_go_on_behind_a_cursor(context: Context) -> None:
    handle = context.start_run("print a\nprint b")
    cursor = next(event.cursor for event in handle.events() if event.type == "stdout")
    assert [event.type for event in handle.events(cursor)] == ["stdout", "finished"]


def test_a_bounded_wait_ends_and_stops_nothing(context: Context) -> None:
    handle = context.start_run("hang")
    with pytest.raises(WaitTimeout, match="still running") as caught:
        handle.wait(0.02)
    assert caught.value.details["bound_s"] == 0.02
    assert not handle.result().finished
    handle.interrupt()


def test_a_wait_without_bound_is_made_of_bounded_ones(
    context: Context, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes when it has waited three times, however busy the machine is."""
    monkeypatch.setattr("cloche._run_handle.WAIT_S", 0.02)
    handle = context.start_run("hang")

    def interrupt_after_three() -> None:
        deadline = time.monotonic() + 30
        while sum("wait_s=0.02" in uri for _, uri in app.log) < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
        handle.interrupt()

    interrupt = threading.Thread(target=interrupt_after_three)
    interrupt.start()
    assert handle.wait().status is RunStatus.INTERRUPTED
    interrupt.join()
    assert sum(method == "GET" and "wait_s=0.02" in uri for method, uri in app.log) > 2


def test_a_reply_nobody_waits_for_is_a_conflict(context: Context) -> None:
    handle = context.start_run("hang")
    with pytest.raises(Conflict):
        handle.reply("x")
    handle.interrupt()


def test_one_connection_serves_many_calls_and_sends_at_once(sandbox: Sandbox, app: App) -> None:
    for _ in range(5):
        sandbox.run("1+1")
    assert len(app.connections) == 1


def test_small_requests_are_not_held_back(sandbox: Sandbox) -> None:
    import socket

    pool = sandbox._link._http._transport._pool  # type: ignore[attr-defined]
    stream = pool.connections[0]._connection._network_stream
    assert stream.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_proxy_of_the_environment_is_not_used_for_loopback(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with Client(server.url, "test-key") as client:
        assert client.health().status == "ok"
