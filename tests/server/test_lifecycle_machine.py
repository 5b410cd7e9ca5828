"""The state machine and what a new server makes of states it finds: properties over all states and events."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.errors import ClocheError, Gone, SandboxNotRunning
from cloche.models import SandboxState
from cloche_server.lifecycle import LEGAL, TRANSIENT, Event, Found, next_state, resolve

S = SandboxState
ENDS = {Event.STARTED, Event.SAVED, Event.KEPT_MEMORY, Event.KEPT_FILES}
FAILURES = {Event.START_FAILED, Event.SAVE_FAILED, Event.KEPT_MEMORY, Event.KEPT_FILES, Event.ENDED}
ASKED = {Event.PAUSE, Event.SUSPEND, Event.STOP, Event.RESUME, Event.RESTORE}


def reachable() -> set[S]:
    found, new = set[S](), {S.CREATING}
    while new:
        found |= new
        new = {after for (state, _), after in LEGAL.items() if state in found} - found
    return found


def test_every_state_is_reached_from_a_create() -> None:
    assert reachable() == set(S)


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_any_history_stays_within_the_table_or_is_refused_with_a_typed_error(events: list[Event]) -> None:
    state = S.CREATING
    for event in events:
        if (state, event) in LEGAL:
            state = next_state(state, event, "x" * 20)
            continue
        with pytest.raises(ClocheError) as caught:
            next_state(state, event, "x" * 20)
        assert caught.value.code in {"gone", "sandbox_not_running", "internal"}


@pytest.mark.parametrize("event", Event)
def test_deleted_is_final_and_failed_can_only_be_deleted(event: Event) -> None:
    with pytest.raises(Gone):
        next_state(S.DELETED, event)
    assert ((S.FAILED, event) in LEGAL) is (event is Event.DELETE)


@pytest.mark.parametrize("state", sorted(TRANSIENT))
def test_what_is_under_way_ends_in_success_failure_or_a_delete(state: S) -> None:
    outcomes = {event: after for (before, event), after in LEGAL.items() if before is state}
    assert outcomes.keys() & ENDS
    assert outcomes.keys() & FAILURES
    assert outcomes[Event.ENDED] is S.FAILED
    assert not set(outcomes.values()) & TRANSIENT
    assert not outcomes.keys() & ASKED


@pytest.mark.parametrize(("state", "event"), sorted(product(set(S) - {S.DELETED}, ASKED)))
def test_what_cannot_be_asked_for_now_says_the_state_and_what_to_do(state: S, event: Event) -> None:
    if (state, event) in LEGAL:
        assert next_state(state, event) is LEGAL[state, event]
        return
    with pytest.raises(SandboxNotRunning) as caught:
        next_state(state, event, "x" * 20)
    assert caught.value.details["state"] == state.value
    assert caught.value.hint


FOUND = [Found(*each) for each in product([False, True], repeat=4)]


@pytest.mark.parametrize("state", sorted(set(S)))
@pytest.mark.parametrize("found", FOUND)
def test_a_new_server_makes_something_legal_and_lasting_of_whatever_it_finds(state: S, found: Found) -> None:
    event = resolve(state, found)
    after = state if event is None else next_state(state, event)
    assert after not in TRANSIENT
    if after in (S.RUNNING, S.PAUSED):
        assert found.alive
    if after in (S.SUSPENDED, S.STOPPED):
        assert found.saved


@pytest.mark.parametrize("state", sorted(set(S) - {S.CREATING, S.FAILED, S.DELETED}))
@pytest.mark.parametrize("found", FOUND)
def test_what_is_alive_or_saved_is_never_lost(state: S, found: Found) -> None:
    """But for the half of it that has no meaning in that state: a process of a suspended one, memory of a running one."""
    lasting = {S.RUNNING: found.alive, S.PAUSED: found.alive, S.SUSPENDED: found.saved, S.STOPPED: found.saved}
    there = lasting.get(state, found.alive or found.saved)
    lost = resolve(state, found) is Event.ENDED
    assert lost is not there


@pytest.mark.parametrize("state", [S.RESUMING, S.RESTORING])
def test_what_was_saved_is_given_up_only_when_a_guest_of_the_new_life_said_hello(state: S) -> None:
    saved = [found for found in FOUND if found.saved]
    for found in saved:
        assert (resolve(state, found) is Event.STARTED) is (found.alive and found.greeted)
