"""Looking for text in output: pure."""

from __future__ import annotations

import re
import signal
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche_guest.processes._matcher import WINDOW, LogMatcher, Match, TooSlow

BOTH = frozenset(("stdout", "stderr"))


def feed(matcher: LogMatcher, chunks: list[bytes], stream: str = "stdout") -> Match | None:
    for chunk in chunks:
        match = matcher.feed(stream, chunk)
        if match is not None and match.complete:
            return match
    return match if chunks else None


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(marks)]


@given(st.text(max_size=40), st.text(min_size=1, max_size=10), st.text(max_size=40), st.lists(st.integers(0, 400)))
def test_a_text_is_found_wherever_it_is_cut(before: str, pattern: str, after: str, places: list[int]) -> None:
    """cloudflare/sandbox-sdk#459: a match that was split over chunks was missed."""
    data = (before + pattern + after).encode("utf-8", "replace")
    pattern = pattern.encode("utf-8", "replace").decode()
    match = feed(LogMatcher(pattern, regex=False, streams=BOTH), cut(data, places))
    assert match is not None
    assert match.text == pattern


@given(
    st.text("ab1 \n", max_size=60), st.sampled_from(["a+b", r"^b.*$", r"(\d)a", "b\\s+1"]), st.lists(st.integers(0, 99))
)
def test_an_expression_is_found_if_and_only_if_it_is_in_the_whole(text: str, pattern: str, places: list[int]) -> None:
    matcher = LogMatcher(pattern, regex=True, streams=BOTH)
    match = feed(matcher, cut(text.encode(), places))
    wanted = re.search(pattern, text, re.MULTILINE)
    if wanted is None:
        assert match is None
    elif "$" not in pattern:  # the end of what is there so far counts as the end of a line
        assert match is not None or matcher.feed("stdout", b"") is not None


@given(st.binary(max_size=100), st.lists(st.integers(0, 100)))
def test_any_bytes_may_be_cut_anywhere(data: bytes, places: list[int]) -> None:
    assert feed(LogMatcher("\0never\0", regex=False, streams=BOTH), cut(data, places)) is None


def test_a_number_at_the_end_may_grow() -> None:
    matcher = LogMatcher(r"port (\d+)", regex=True, streams=BOTH)
    first = matcher.feed("stdout", b"on port 80")
    assert first is not None
    assert (first.groups, first.complete) == (["80"], False)
    second = matcher.feed("stdout", b"80\n")
    assert second is not None
    assert (second.groups, second.complete, second.line) == (["8080"], True, "on port 8080")


def test_streams_do_not_mix() -> None:
    matcher = LogMatcher("ready", regex=False, streams=BOTH)
    assert matcher.feed("stdout", b"re") is None
    assert matcher.feed("stderr", b"ady") is None
    match = matcher.feed("stdout", b"ady\n")
    assert match is not None
    assert match.stream == "stdout"


def test_only_the_stream_that_was_asked_for() -> None:
    matcher = LogMatcher("x", regex=False, streams=frozenset(("stderr",)))
    assert matcher.feed("stdout", b"x") is None
    assert matcher.feed("stderr", b"x") is not None


def test_missing_output_joins_nothing() -> None:
    matcher = LogMatcher("ab", regex=False, streams=BOTH)
    matcher.feed("stdout", b"a")
    matcher.miss()
    assert matcher.feed("stdout", b"b") is None


def test_going_back_and_feeding_again_finds_the_same() -> None:
    matcher = LogMatcher("éé", regex=False, streams=BOTH)
    matcher.feed("stdout", "é".encode()[:1])
    place = matcher.place()
    whole = "éé".encode()[1:]
    assert matcher.feed("stdout", whole) is not None
    matcher.go_back(place)
    assert [matcher.feed("stdout", whole[n : n + 1]) is not None for n in range(3)] == [False, False, True]


def test_the_window_is_bounded() -> None:
    matcher = LogMatcher("a.*z", regex=True, streams=BOTH)
    for _ in range(50):
        matcher.feed("stdout", b"x" * 10_000)
    assert len(matcher.place().states["stdout"][0]) == WINDOW


def test_an_expression_that_takes_for_ever_is_given_up() -> None:
    matcher = LogMatcher(r"(a+)+$", regex=True, streams=BOTH, search_s=0.1)
    began = time.monotonic()
    with pytest.raises(TooSlow):
        matcher.feed("stdout", b"a" * 60 + b"!")
    assert time.monotonic() - began < 30


def test_an_alarm_that_was_set_before_still_comes() -> None:
    rang = threading.Event()
    before = signal.signal(signal.SIGALRM, lambda *_: rang.set())
    outer = signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        LogMatcher("x", regex=True, streams=BOTH).feed("stdout", b"y")
        assert rang.wait(60)
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *outer)


def test_what_is_no_expression_is_refused() -> None:
    with pytest.raises(re.error):
        LogMatcher("(", regex=True, streams=BOTH)
