"""What goes wrong on the way: lost answers, cut streams, silent servers, strangers."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from protocol_app import KEY, App, Fault, Server

from cloche import (
    AsyncClient,
    AsyncSandbox,
    Client,
    ConnectionFailed,
    LimitReached,
    Sandbox,
    Unauthenticated,
    WaitTimeout,
    _calls,
)
from cloche.errors import SandboxUnreachable
from cloche.models import SandboxState


@pytest.fixture
def sandbox(client: Client) -> Sandbox:
    return Sandbox.create(client=client, name="box")


@pytest.mark.parametrize("kind", ["refuse", "forget"])
def test_a_lost_create_makes_one_sandbox(client: Client, app: App, kind: str) -> None:
    client.health()
    app.faults += [Fault(kind, "POST", "/sandboxes"), Fault(kind, "POST", "/sandboxes")]
    made = Sandbox.create(client=client)
    assert list(app.sandboxes) == [made.id]


@pytest.mark.parametrize("kind", ["refuse", "forget"])
def test_a_lost_run_is_executed_once(sandbox: Sandbox, app: App, kind: str) -> None:
    app.faults += [Fault(kind, "POST", "/runs"), Fault(kind, "POST", "/runs")]
    assert sandbox.run("print once").stdout == "once\n"
    assert app.executed == ["print once"]


async def test_a_lost_run_is_executed_once_async(async_client: AsyncClient, app: App) -> None:
    sandbox = await AsyncSandbox.create(client=async_client)
    app.faults.append(Fault("forget", "POST", "/runs"))
    assert (await sandbox.run("print once", on_stdout=lambda _text: None)).stdout == "once\n"
    assert app.executed == ["print once"]


def test_equal_code_run_twice_is_executed_twice(sandbox: Sandbox, app: App) -> None:
    sandbox.run("print a")
    sandbox.run("print a")
    assert app.executed == ["print a", "print a"]


@pytest.mark.parametrize("kind", ["refuse", "forget"])
def test_a_lost_delete_deletes_once(sandbox: Sandbox, app: App, kind: str) -> None:
    app.faults.append(Fault(kind, "DELETE"))
    sandbox.delete()
    assert app.sandboxes[sandbox.id].state is SandboxState.DELETED


def test_a_call_whose_repetition_could_harm_is_not_repeated(sandbox: Sandbox, app: App) -> None:
    app.faults.append(Fault("forget", "POST", "/restart"))
    with pytest.raises(ConnectionFailed):
        sandbox.contexts.default.restart()
    assert sum(uri.endswith("/restart") for _, uri in app.log) == 1


def test_a_stream_that_is_cut_again_and_again_is_complete(sandbox: Sandbox, app: App) -> None:
    app.faults += [Fault("cut", "GET", "/events", after_bytes=cut) for cut in (0, 70, 500, 33, 1000)]
    app.faults += [Fault("refuse", "GET", "/events"), Fault("error", "GET", "/events", answer=SandboxUnreachable("x"))]
    handle = sandbox.contexts.default.start_run("flood 100")
    events = list(handle.events())
    assert [event.data["text"] for event in events if event.type == "stdout"] == [f"{n}\n" for n in range(100)]
    assert len({event.cursor for event in events}) == len(events) == 102


async def test_a_stream_that_is_cut_is_complete_async(async_client: AsyncClient, app: App) -> None:
    app.faults += [Fault("cut", "GET", "/events", after_bytes=cut) for cut in (0, 70, 500)]
    sandbox = await AsyncSandbox.create(client=async_client)
    out: list[str] = []
    await sandbox.run("flood 100", on_stdout=out.append)
    assert out == [f"{n}\n" for n in range(100)]


def test_connections_that_died_in_the_pool_are_replaced(sandbox: Sandbox, server: Server) -> None:
    server.close_connections()
    assert sandbox.run("1+1").text == "2"


def test_no_server_is_said_at_once() -> None:
    started = time.monotonic()
    with (
        Client("http://127.0.0.1:9", KEY, reconnect_s=600) as client,
        pytest.raises(ConnectionFailed, match="cloche serve"),
    ):
        client.info()
    assert time.monotonic() - started < 120, "nobody waits for a server that was never there"


def test_a_server_that_stays_away_is_said_when_patience_ends(server: Server) -> None:
    with Client(server.url, KEY, reconnect_s=0.2) as client:
        client.health()
        server.stop()
        with pytest.raises(ConnectionFailed, match="lost the connection") as caught:
            client.info()
    assert caught.value.details["reached_before"] is True


def test_a_wrong_key_is_said(server: Server) -> None:
    with Client(server.url, "wrong") as client, pytest.raises(Unauthenticated) as caught:
        client.info()
    assert caught.value.request_id == "req-1"


def test_an_error_of_the_server_comes_as_its_class_with_its_values(client: Client, app: App) -> None:
    app.faults.append(Fault("error", answer=LimitReached("too many", hint="delete some", details={"limit": 3})))
    with pytest.raises(LimitReached, match=r"too many \(delete some\)") as caught:
        Sandbox.create(client=client)
    assert caught.value.details == {"limit": 3}


@pytest.mark.parametrize("kind", ["html", "nonsense"])
def test_a_stranger_in_between_is_recognised(client: Client, app: App, kind: str) -> None:
    app.faults.append(Fault(kind, "GET", "/info"))
    with pytest.raises(ConnectionFailed):
        client.info()


def test_a_silent_server_is_a_wait_timeout(client: Client, app: App) -> None:
    app.faults.append(Fault("silent", "GET", "/info"))
    with pytest.raises(WaitTimeout, match=r"0\.05 s"):
        client._link.send(replace(_calls.info(), answer_within_s=0.05))
