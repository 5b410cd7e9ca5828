"""The rules for trying again, without any transport."""

from types import SimpleNamespace
from typing import Any

import pytest

from cloche._calls import Call, segment
from cloche._flow import Flow, Pause, send_patiently
from cloche._patience import Patience
from cloche.errors import (
    ClocheError,
    Conflict,
    ConnectionFailed,
    InvalidRequest,
    SandboxNotRunning,
    SandboxUnreachable,
    WaitTimeout,
)
from cloche.models import SandboxState


def lost(*, sent: bool = True, reached_before: bool = True) -> ConnectionFailed:
    return ConnectionFailed("lost", details={"sent": sent, "reached_before": reached_before})


def carry_out(flow: Flow[Any], outcomes: list[Any]) -> tuple[Any, int, float]:
    """Answer each call with the next outcome; count calls and seconds of pauses."""
    calls, paused, send = 0, 0.0, None
    step = next(flow)
    while True:
        try:
            if isinstance(step, Pause):
                paused += step.seconds
                step = flow.send(None)
                continue
            calls += 1
            outcome = outcomes.pop(0)
            step = flow.throw(outcome) if isinstance(outcome, Exception) else flow.send(outcome)
        except StopIteration as end:
            return end.value, calls, paused
        assert send is None


def call(*, repeatable: bool) -> Call[int]:
    return Call("POST", "/v1/x", lambda _: 1, repeatable=repeatable)


def test_a_repeatable_call_is_sent_again() -> None:
    flow = send_patiently(call(repeatable=True), Patience())
    assert carry_out(flow, [lost(), WaitTimeout("slow", details=dict(lost().details)), 7]) == (
        7,
        3,
        pytest.approx(0.15),
    )


def test_another_call_is_sent_again_only_when_it_was_never_sent() -> None:
    assert carry_out(send_patiently(call(repeatable=False), Patience()), [lost(sent=False), 7])[0] == 7
    with pytest.raises(ConnectionFailed):
        carry_out(send_patiently(call(repeatable=False), Patience()), [lost()])


def test_a_server_that_never_answered_is_not_waited_for() -> None:
    with pytest.raises(ConnectionFailed):
        carry_out(send_patiently(call(repeatable=True), Patience()), [lost(sent=False, reached_before=False)])


def test_patience_ends() -> None:
    with pytest.raises(ConnectionFailed):
        carry_out(send_patiently(call(repeatable=True), Patience(0.1)), [lost(), lost(), lost(), 7])


@pytest.mark.parametrize("error", [Conflict("x"), SandboxUnreachable("x")])
def test_what_the_server_says_is_not_argued_with(error: ClocheError) -> None:
    with pytest.raises(type(error)):
        carry_out(send_patiently(call(repeatable=True), Patience()), [error])


IN_SANDBOX: Call[int] = Call("POST", "/v1/sandboxes/abcdefghij0123456789/x", lambda _: 1, repeatable=True)


def rests(state: str, *, cut: bool = True) -> SandboxNotRunning:
    return SandboxNotRunning("it rests", details={"state": state, "cut": cut})


def seen(state: SandboxState) -> Any:
    return SimpleNamespace(state=state)


def test_a_call_that_is_cut_because_the_sandbox_is_saved_is_sent_again() -> None:
    cut = SandboxUnreachable("cut", details={"cut": True})
    assert carry_out(send_patiently(call(repeatable=True), Patience()), [cut, cut, 7])[:2] == (7, 3)
    with pytest.raises(SandboxUnreachable):
        carry_out(send_patiently(call(repeatable=False), Patience()), [cut])


def test_a_call_under_which_the_sandbox_came_to_rest_looks_until_it_runs() -> None:
    """Sending it again would wake the sandbox."""
    outcomes = [
        rests("suspending"),
        seen(SandboxState.SUSPENDED),
        seen(SandboxState.RESUMING),
        seen(SandboxState.RUNNING),
        7,
    ]
    assert carry_out(send_patiently(IN_SANDBOX, Patience()), outcomes)[:2] == (7, 5)


@pytest.mark.parametrize(
    "outcomes",
    [
        [rests("suspended", cut=False)],
        [rests("stopped")],
        [rests("suspending"), seen(SandboxState.STOPPED)],
        [rests("suspending"), seen(SandboxState.FAILED)],
    ],
    ids=["at rest before", "stopped", "stopped later", "failed later"],
)
def test_a_rest_that_is_no_mere_pause_is_said_at_once(outcomes: list[Any]) -> None:
    with pytest.raises(SandboxNotRunning):
        carry_out(send_patiently(IN_SANDBOX, Patience()), outcomes)


def test_a_long_rest_ends_the_wait() -> None:
    outcomes = [rests("suspended"), *[seen(SandboxState.SUSPENDED)] * 100]
    with pytest.raises(SandboxNotRunning):
        carry_out(send_patiently(IN_SANDBOX, Patience(5)), outcomes)
    assert len(outcomes) > 90


@pytest.mark.parametrize("value", ["", "..", "a/b", "a b", "ä", "a?b", "%2e", ".x"])
def test_an_id_that_would_address_another_route_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest):
        segment("sandbox", value)
