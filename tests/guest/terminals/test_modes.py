"""The mode tracker: what it sees, and that the size of its chunks makes no difference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche_guest.terminals.modes import FRESH, Modes, ModeTracker
from cloche_guest.terminals.preamble import preamble

PIECES = [
    b"text ",
    "grüße 😀".encode(),
    b"\x1b[31m",
    b"\x1b[1;4;38;5;12m",
    b"\x1b[38:2::1:2:3m",
    b"\x1b[22;39m",
    b"\x1b[m",
    b"\x1b[?1049h",
    b"\x1b[?1049l",
    b"\x1b[?47h",
    b"\x1b[?47l",
    b"\x1b[?25l",
    b"\x1b[?25h",
    b"\x1b[?1000;1006h",
    b"\x1b[?2004h",
    b"\x1b[4h",
    b"\x1b[4l",
    b"\x1b[2;20r",
    b"\x1b[r",
    b"\x1b(0",
    b"\x1b(B",
    b"\x0e",
    b"\x0f",
    b"\x1b=",
    b"\x1b>",
    b"\x1b[5 q",
    b"\x1b]0;a title\x07",
    b"\x1b]2;another\x1b\\",
    b"\x1b]52;c;AAAA\x07",
    b"\x1bPq#0;2;0;0;0\x1b\\",
    b"\x1b_app\x18",
    b"\x1b[>5u",
    b"\x1b[<u",
    b"\x1b[=3;2u",
    b"\x1b[!p",
    b"\x1bc",
    b"\x1b[12;40H",
    b"\x1b[1;\r\n2m",
    b"\x1b[3\x1b[7m",
]

outputs = st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join)


def tracked(data: bytes) -> ModeTracker:
    tracker = ModeTracker()
    tracker.feed(data)
    return tracker


@given(outputs, st.data())
def test_chunking_makes_no_difference(output: bytes, data: st.DataObject) -> None:
    whole, parts = ModeTracker(), ModeTracker()
    cuts = whole.feed(output)
    at, found = 0, []
    while at < len(output):
        size = data.draw(st.integers(1, 7))
        found += parts.feed(output[at : at + size])
        at += size
    assert parts.snapshot() == whole.snapshot()
    assert parts.ground_offset == whole.ground_offset
    assert found == cuts


@given(outputs, outputs)
def test_a_preamble_leads_from_any_modes_to_any_others(before: bytes, after: bytes) -> None:
    old, new = tracked(before).snapshot(), tracked(after).snapshot()
    assert tracked(preamble(new)).snapshot() == new
    tracker = tracked(preamble(old))
    tracker.feed(preamble(new, old))
    assert tracker.snapshot() == new


@given(outputs)
def test_what_follows_a_ground_offset_means_the_same_to_a_parser_that_starts_there(output: bytes) -> None:
    """The reason for segments: a reader that begins at one with the preamble ends in the same modes."""
    tracker = tracked(output)
    joined = tracked(preamble(tracker.snapshot()))
    joined.feed(output[tracker.ground_offset :])
    rest = b"\x07\x1b\\ plain \x1b[32m"
    tracker.feed(rest)
    joined.feed(rest)
    assert joined.snapshot() == tracker.snapshot()


def test_a_fresh_terminal_has_no_preamble() -> None:
    assert preamble(FRESH) == b""
    assert ModeTracker().snapshot() == FRESH


@pytest.mark.parametrize(
    ("output", "ground"),
    [
        (b"abc", 3),
        (b"abc\x1b", 3),
        (b"abc\x1b[3", 3),
        (b"abc\x1b[3x", 7),
        (b"abc\x1b]0;ti", 3),
        (b"abc\x1b]0;ti\x07", 10),
        (b"abc\x1bPdata" + b"x" * 10_000, 3),
        (b"ab\xf0\x9f\x98", 2),
        (b"ab\xf0\x9f\x98\x80", 6),
        (b"ab\xff\xff", 4),
        (b"ab\x80\x80\x80", 5),
        (b"\xe2\x82", 0),
        (b"\x1b(", 0),
    ],
)
def test_ground(output: bytes, ground: int) -> None:
    assert tracked(output).ground_offset == ground
    tracker = ModeTracker()
    for byte in output:
        tracker.feed(bytes([byte]))
    assert tracker.ground_offset == ground


def test_sgr_is_kept_by_what_it_sets_not_by_how_often() -> None:
    modes = tracked(b"\x1b[1m\x1b[31m\x1b[32m\x1b[38;2;1;2;3m\x1b[48:5:7m\x1b[22m" * 1000).snapshot()
    assert modes == Modes(sgr=(("background", b"48:5:7"), ("foreground", b"38;2;1;2;3")))


def test_a_title_cannot_smuggle_a_sequence_into_the_preamble() -> None:
    modes = tracked(b"\x1b]2;evil\x0d\x9bname\x07").snapshot()
    assert b"\x07" not in modes.title
    assert preamble(modes).count(b"\x1b") == 1
