"""From events to outputs: the rules of `cloche.outputs`, and that they hold for any events."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cloche.models import DisplayOutput, ErrorOutput, Event, StreamOutput, TruncatedOutput
from cloche.outputs import OutputList, collapse


def event(kind: str, **data: Any) -> Event:
    return Event(type=kind, cursor="e.0.0", data=data)


def shown(plain: str, display_id: str | None = None, kind: str = "display") -> Event:
    return event(kind, data={"text/plain": plain}, metadata={}, display_id=display_id)


def texts(*events: Event) -> list[str]:
    return [output.text for output in collapse(events) if isinstance(output, StreamOutput)]


def test_text_of_one_stream_is_joined_and_of_two_is_not() -> None:
    events = [
        event("stdout", text="a"),
        event("stdout", text="b"),
        event("stderr", text="c"),
        event("stdout", text="d"),
    ]
    assert collapse(events) == [
        StreamOutput(type="stdout", text="ab"),
        StreamOutput(type="stderr", text="c"),
        StreamOutput(type="stdout", text="d"),
    ]


def test_clear_output_empties_the_list_now() -> None:
    assert texts(event("stdout", text="a"), event("clear_output", wait=False), event("stdout", text="b")) == ["b"]
    assert collapse([shown("a"), event("clear_output", wait=False)]) == []


def test_clear_output_with_wait_empties_it_at_the_next_output() -> None:
    """positron#10459, nbconvert PR#969."""
    waiting = [event("stdout", text="a"), event("clear_output", wait=True)]
    assert texts(*waiting) == ["a"]
    for output in (event("stdout", text="b"), shown("b"), event("error", name="E", value="", traceback=[])):
        assert len(collapse([*waiting, output])) == 1
    assert texts(*waiting, event("update_display", display_id="d", data={}, metadata={})) == ["a"]


def test_an_update_changes_every_display_of_that_id_and_no_other() -> None:
    """nteract#1447."""
    update = event("update_display", data={"text/plain": "new"}, metadata={"m": 1}, display_id="d")
    outputs = collapse([shown("1", "d"), shown("2", "d"), shown("3", "e"), shown("4"), update])
    plain = [output.data["text/plain"] for output in outputs if isinstance(output, DisplayOutput)]
    assert plain == ["new", "new", "3", "4"]


def test_an_update_does_not_reach_displays_that_come_after_it() -> None:
    update = event("update_display", data={"text/plain": "new"}, metadata={}, display_id="d")
    assert [output.data for output in collapse([update, shown("1", "d")]) if isinstance(output, DisplayOutput)] == [
        {"text/plain": "1"}
    ]


def test_updates_of_later_runs_are_applied_at_the_end() -> None:
    [output] = collapse([shown("1", "d")], {"d": ({"text/plain": "later"}, {})})
    assert isinstance(output, DisplayOutput)
    assert output.data == {"text/plain": "later"}


def test_a_result_has_its_count_and_an_error_its_place() -> None:
    result = event("result", data={"text/plain": "1"}, metadata={}, display_id=None, execution_count=4)
    outputs = collapse([event("stdout", text="x"), result, event("error", name="E", value="v", traceback=["t"])])
    assert isinstance(outputs[1], DisplayOutput)
    assert (outputs[1].type, outputs[1].execution_count) == ("result", 4)
    assert outputs[2] == ErrorOutput(name="E", value="v", traceback=["t"])


def test_a_gap_is_said_at_its_place_and_gaps_are_added_up() -> None:
    events = [event("stdout", text="a"), event("gap", records=1, bytes=10), event("gap", records=2, bytes=5)]
    assert collapse([*events, event("stdout", text="b")]) == [
        StreamOutput(type="stdout", text="a"),
        TruncatedOutput(records=3, bytes=15),
        StreamOutput(type="stdout", text="b"),
    ]


def test_other_events_show_nothing() -> None:
    others = ("started", "finished", "input_request", "something_new")
    assert collapse(event(kind, status="ok") for kind in others) == []


ids = st.sampled_from(["d", "e", None])
events = st.lists(
    st.one_of(
        st.builds(event, st.sampled_from(["stdout", "stderr"]), text=st.text(max_size=5)),
        st.builds(shown, st.text(max_size=5), ids, st.sampled_from(["display", "result"])),
        st.builds(event, st.just("clear_output"), wait=st.booleans()),
        st.builds(event, st.just("gap"), records=st.integers(1, 9), bytes=st.integers(1, 9)),
        st.builds(event, st.just("error"), name=st.text(), value=st.text(), traceback=st.just([])),
        st.builds(
            event,
            st.just("update_display"),
            data=st.just({"text/plain": "new"}),
            metadata=st.just({}),
            display_id=st.sampled_from(["d", "e"]),
        ),
    ),
    max_size=30,
)


@given(events)
def test_looking_in_between_changes_nothing(sequence: list[Event]) -> None:
    """A UI that renders after every event ends with what a single pass over all events gives."""
    collected = OutputList()
    for item in sequence:
        collected.add(item)
        collected.outputs()
    assert collected.outputs() == collapse(sequence)


@given(events, st.integers(1, 4))
def test_how_text_was_cut_into_events_does_not_matter(sequence: list[Event], size: int) -> None:
    cut: list[Event] = []
    for item in sequence:
        text = item.data.get("text") if item.type in ("stdout", "stderr") else None
        if isinstance(text, str) and text:
            cut += [event(item.type, text=text[at : at + size]) for at in range(0, len(text), size)]
        else:
            cut.append(item)
    assert collapse(cut) == collapse(sequence)


@given(events)
def test_without_clearing_and_gaps_all_text_is_there(sequence: list[Event]) -> None:
    kept = [item for item in sequence if item.type != "clear_output"]
    for kind in ("stdout", "stderr"):
        wanted = "".join(str(item.data["text"]) for item in kept if item.type == kind)
        outputs = collapse(kept)
        assert "".join(o.text for o in outputs if isinstance(o, StreamOutput) and o.type == kind) == wanted
