"""The output log: whole segments, exact holes, sizes at their offsets."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from cloche_guest.terminals.log import (
    MAX_SEGMENT_BYTES,
    MAX_SEGMENTS,
    SEGMENT_BYTES,
    Chunk,
    Dimensions,
    Hole,
    Item,
    OutputLog,
    Place,
    SizeChange,
)

SMALL = Dimensions(80, 24)
LARGE = Dimensions(120, 40)
K = 1024


def read_from(log: OutputLog, place: Place, step: int = 10_000) -> list[Item]:
    items = []
    while (found := log.read(place, step)) is not None:
        item, place = found
        items.append(item)
    return items


def text_of(items: list[Item]) -> bytes:
    return b"".join(item.data for item in items if isinstance(item, Chunk))


chunks = st.lists(
    st.one_of(
        st.binary(max_size=200),
        st.sampled_from([b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[31m", "😀".encode(), b"\x1b]0;x", b"\x07"]),
    ),
    max_size=60,
)


@given(chunks, st.integers(1, 300), st.data())
def test_every_reader_gets_every_byte_once(parts: list[bytes], step: int, data: st.DataObject) -> None:
    log, everything = OutputLog(SMALL), b"".join(parts)
    for part in parts:
        log.append(part)
    start = data.draw(st.integers(0, len(everything)))
    assert text_of(read_from(log, log.place(start), step)) == everything[start:]


@given(chunks, st.integers(1, 50), st.data())
def test_what_was_dropped_is_said_exactly(parts: list[bytes], repeat: int, data: st.DataObject) -> None:
    log, everything = OutputLog(SMALL, normal_bytes=700, alternate_bytes=300), b"".join(parts) * repeat
    everything = everything[: 20 * K]
    for at in range(0, len(everything), 97):
        log.append(everything[at : at + 97])
        log._split_when_possible()  # segments as small as the budgets of this test
    position = log.oldest
    for item in read_from(log, log.place(position), data.draw(st.integers(1, 300))):
        if isinstance(item, Chunk):
            assert item.offset == position
            assert item.data == everything[position : item.end]
            position = item.end
        elif isinstance(item, Hole):
            assert item.start == position < item.end
            position = item.end
    assert position == len(everything)


def test_budgets_hold_and_segments_begin_at_ground() -> None:
    log = OutputLog(SMALL, normal_bytes=4 * SEGMENT_BYTES)
    for number in range(60_000):
        log.append(b"\x1b[3%dmline %d \xe2\x82\xac\x1b[0m\r\n" % (number % 8, number))
    assert log.stored_bytes <= 5 * SEGMENT_BYTES
    assert log.oldest > 0
    kept = text_of(read_from(log, log.place(log.oldest)))
    assert re.match(rb"\[?\d*m|[\x80-\xbf]", kept) is None  # the rest of a sequence, or of a character


def test_a_busy_full_screen_program_leaves_the_shells_output_alone() -> None:
    """ "vim left" was restored in 8 % of the cases by tail logs: the screen under it had been pushed out."""
    log = OutputLog(SMALL)
    log.append(b"precious shell output\r\n")
    log.append(b"\x1b[?1049h")
    for _ in range(100):
        log.append(b"\x1b[Hframe" + b"." * 50_000)
    assert log.oldest == 0
    assert log.stored_bytes < 2 * 1024 * K
    log.append(b"\x1b[?1049lback")
    log.append(b"x" * (1200 * K))  # makes nothing of the alternate screen go
    items = read_from(log, log.place(0))
    assert text_of(items).startswith(b"precious shell output\r\n")


def test_an_ended_alternate_session_goes_as_a_whole() -> None:
    log = OutputLog(SMALL, alternate_bytes=100 * K)
    log.append(b"one\x1b[?1049h" + b"a" * (90 * K) + b"\x1b[?1049ltwo")
    log.append(b"\x1b[?1049h" + b"b" * (50 * K) + b"\x1b[?1049lthree")
    items = read_from(log, log.place(0), 1024 * K)
    holes = [item for item in items if isinstance(item, Hole)]
    assert [(hole.start, hole.end) for hole in holes] == [(3, 3 + 8 + 90 * K + 8)]
    assert not holes[0].before.alternate
    assert not holes[0].after.alternate
    assert not log.is_whole(0)
    assert log.is_whole(holes[0].end)


def test_an_endless_string_is_cut_at_a_mebibyte() -> None:
    log = OutputLog(SMALL, normal_bytes=2 * MAX_SEGMENT_BYTES)
    log.append(b"\x1b]52;c;")
    for _ in range(200):
        log.append(b"A" * 32 * K)
    assert log.stored_bytes <= 3 * MAX_SEGMENT_BYTES


def test_switching_screens_for_ever_is_bounded() -> None:
    log = OutputLog(SMALL)
    for _ in range(5000):
        log.append(b"\x1b[?1049hx\x1b[?1049l")
    assert len(log._segments) <= MAX_SEGMENTS


def test_a_size_comes_exactly_at_its_offset() -> None:
    log = OutputLog(SMALL)
    log.append(b"abc")
    log.resize(LARGE)
    log.append(b"def")
    log.resize(SMALL)
    items = read_from(log, log.place(0))
    assert items == [
        SizeChange(0, SMALL, 0),
        Chunk(0, b"abc"),
        SizeChange(3, LARGE, 1),
        Chunk(3, b"def"),
        SizeChange(6, SMALL, 2),
    ]
    assert log.size_before(log.place(5)) == LARGE


def test_sizes_without_output_between_them_do_not_pile_up() -> None:
    log = OutputLog(SMALL)
    for number in range(100_000):
        log.resize(Dimensions(80 + number % 2 + 1, 24))
    assert len(log._sizes) == 1
