"""The journal against a model that never forgets."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.errors import CursorBeyondHead, ForeignCursor, MalformedCursor
from cloche.journal import Cursor, Gap, Journal, Record, RecordTooLarge, split_bytes, split_text

appends = st.lists(st.tuples(st.binary(max_size=20), st.booleans()), max_size=80)
budgets = st.fixed_dictionaries(
    {
        "max_bytes": st.integers(20, 200),
        "max_records": st.integers(1, 30),
        "head_bytes": st.sampled_from([0, 1, 30, 100]),
        "kept_bytes": st.integers(20, 200),
    }
)


def filled(budget: dict[str, int], chunks: list[tuple[bytes, bool]]) -> Journal:
    journal = Journal("e1", record_bytes=8, **budget)
    for data, keep in chunks:
        journal.append("k" if keep else "t", data, keep=keep)
    return journal


def walk(journal: Journal, cursor: Cursor) -> list[Record | Gap]:
    items: list[Record | Gap] = []
    while batch := journal.read(cursor, max_records=3, max_bytes=25):
        items += batch
        cursor = batch[-1].cursor
    assert cursor == journal.head
    return items


@given(budgets, appends, st.data())
def test_every_reader_gets_each_record_or_an_exact_gap(
    budget: dict[str, int], chunks: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    journal = filled(budget, chunks)
    start = data.draw(st.integers(0, len(chunks)))
    seq = start
    for item in walk(journal, Cursor("e1", start, sum(len(c) for c, _ in chunks[:start]))):
        if isinstance(item, Gap):
            assert item.bytes == sum(len(c) for c, _ in chunks[seq : seq + item.records])
            seq += item.records
        else:
            assert item.data == chunks[seq][0]
            seq += 1
    assert seq == len(chunks)


@given(budgets, appends)
def test_memory_stays_within_the_budgets(budget: dict[str, int], chunks: list[tuple[bytes, bool]]) -> None:
    journal = filled(budget, chunks)
    stored = [item for item in walk(journal, journal.start) if isinstance(item, Record)]
    assert journal.stored_bytes == sum(len(r.data) for r in stored)
    assert journal.stored_bytes <= budget["max_bytes"] + budget["head_bytes"] + budget["kept_bytes"]
    assert len(stored) <= 3 * budget["max_records"]


@given(budgets, appends)
def test_gaps_are_never_adjacent(budget: dict[str, int], chunks: list[tuple[bytes, bool]]) -> None:
    journal = filled(budget, chunks)
    kinds = [type(item) for item in walk(journal, journal.start)]
    assert (Gap, Gap) not in list(itertools.pairwise(kinds))


@given(budgets, appends, st.data())
def test_a_reader_that_follows_live_sees_what_a_late_reader_is_told_it_missed(
    budget: dict[str, int], chunks: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    """Interleave appends and reads at random: the bytes received plus the bytes of gaps are all bytes appended."""
    journal = Journal("e1", record_bytes=8, **budget)
    cursor, seen = journal.start, 0
    for chunk, keep in chunks:
        journal.append("t", chunk, keep=keep)
        if data.draw(st.booleans()):
            for item in journal.read(cursor):
                seen += item.bytes if isinstance(item, Gap) else len(item.data)
                cursor = item.cursor
    for item in walk(journal, cursor):
        seen += item.bytes if isinstance(item, Gap) else len(item.data)
    assert seen == sum(len(c) for c, _ in chunks)


@given(budgets, appends)
def test_every_cursor_handed_out_can_be_parsed_again(budget: dict[str, int], chunks: list[tuple[bytes, bool]]) -> None:
    journal = Journal("e1", record_bytes=8, **budget)
    cursors = [journal.start]
    for data, keep in chunks:
        journal.append("t", data, keep=keep)
        cursors.append(journal.head)
    assert [journal.parse(str(cursor)) for cursor in cursors] == cursors


def test_the_head_stays_and_the_tail_moves() -> None:
    journal = Journal("e1", max_bytes=8, head_bytes=4, record_bytes=4)
    for data in (b"aa", b"bb", b"cc", b"dddd", b"eeee", b"ffff"):
        journal.append("t", data)
    items = walk(journal, journal.start)
    assert [i.data if isinstance(i, Record) else (i.records, i.bytes) for i in items] == [
        b"aa",
        b"bb",
        (2, 6),
        b"eeee",
        b"ffff",
    ]


def test_a_flood_of_text_does_not_push_out_a_kept_record() -> None:
    journal = Journal("e1", max_bytes=8, kept_bytes=100, record_bytes=8)
    journal.append("result", b"plot", keep=True)
    for _ in range(100):
        journal.append("stdout", b"xxxxxxx")
    assert Record("result", b"plot", Cursor("e1", 1, 4)) in walk(journal, journal.start)


def test_a_record_that_must_stay_whole_and_cannot_fit_is_refused() -> None:
    journal = Journal("e1", max_bytes=8, record_bytes=8)
    with pytest.raises(RecordTooLarge, match="9 bytes exceeds its budget of 8"):
        journal.append("t", b"123456789")
    assert journal.head == journal.start


def test_one_large_record_can_always_be_read() -> None:
    journal = Journal("e1", max_bytes=100, record_bytes=8)
    journal.append("t", b"x" * 50)
    assert len(journal.read(journal.start, max_bytes=1)) == 1


@pytest.mark.parametrize(
    "text", ["", "e1", "e1.0", "e1.0.0.0", "e1.-1.0", "E1.0.0", "e1.00.0", "e1.0.٣", "e1.1." + "9" * 40]
)
def test_a_malformed_cursor_is_refused(text: str) -> None:
    with pytest.raises(MalformedCursor):
        Journal("e1", max_bytes=8, record_bytes=8).parse(text)


def test_a_cursor_whose_numbers_do_not_belong_together_is_refused() -> None:
    journal = filled({"max_bytes": 20, "head_bytes": 0, "kept_bytes": 0}, [(b"12345678", False)] * 5)
    for text in ("e1.5.39", "e1.4.33", "e1.0.1", "e1.1.900"):
        with pytest.raises(MalformedCursor):
            journal.parse(text)


def test_a_cursor_of_another_epoch_is_refused() -> None:
    with pytest.raises(ForeignCursor):
        Journal("e1", max_bytes=8, record_bytes=8).parse("e2.0.0")


def test_a_cursor_beyond_the_head_is_refused() -> None:
    with pytest.raises(CursorBeyondHead):
        Journal("e1", max_bytes=8, record_bytes=8).parse("e1.1.0")


def test_no_cursor_means_the_start() -> None:
    journal = Journal("e1", max_bytes=8, record_bytes=8)
    assert journal.parse(None) == journal.start


@given(st.text(max_size=200), st.integers(4, 16))
def test_split_text_never_cuts_a_character(text: str, size: int) -> None:
    data = text.encode("utf-8", "ignore") if text.isascii() else text.encode("utf-8", "surrogatepass")
    pieces = list(split_text(data, size))
    assert b"".join(pieces) == data
    assert all(0 < len(piece) <= size for piece in pieces)
    if b"\xed" not in data:
        assert all(piece.decode("utf-8") is not None for piece in pieces)


@given(st.binary(max_size=200), st.integers(4, 16))
def test_splitting_loses_nothing_even_of_invalid_text(data: bytes, size: int) -> None:
    for split in (split_bytes, split_text):
        pieces = list(split(data, size))
        assert b"".join(pieces) == data
        assert all(0 < len(piece) <= size for piece in pieces)


def test_a_large_chunk_is_split_on_append() -> None:
    journal = Journal("e1", max_bytes=100, record_bytes=8)
    journal.append("t", b"0123456789abcdefXYZ", split=split_bytes)
    assert [r.data for r in journal.read(journal.start) if isinstance(r, Record)] == [b"01234567", b"89abcdef", b"XYZ"]


@given(budgets, appends, appends, st.data())
def test_a_renewed_journal_has_the_same_records_under_another_epoch(
    budget: dict[str, int], before: list[tuple[bytes, bool]], after: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    """Both lives, before and after, read as one journal that was never renewed."""
    plain, renewed = filled(budget, before + after), filled(budget, before)
    at = str(renewed.head)
    renewed.renew("e2")
    with pytest.raises(ForeignCursor):
        renewed.parse(at)
    for payload, keep in after:
        renewed.append("k" if keep else "t", payload, keep=keep)
    seq = data.draw(st.integers(0, len(before + after)))
    offset = sum(len(payload) for payload, _ in (before + after)[:seq])
    told = walk(renewed, renewed.parse(f"e2.{seq}.{offset}"))
    assert all(item.cursor.epoch == "e2" for item in told)
    assert [_without_epoch(item) for item in told] == [
        _without_epoch(item) for item in walk(plain, plain.parse(f"e1.{seq}.{offset}"))
    ]


def _without_epoch(item: Record | Gap) -> tuple[object, ...]:
    place = (item.cursor.seq, item.cursor.offset)
    return (*place, item.data) if isinstance(item, Record) else (*place, item.records, item.bytes)


def test_an_epoch_that_cannot_stand_in_a_cursor_is_no_new_life() -> None:
    journal = filled({"max_bytes": 100}, [])
    with pytest.raises(ValueError, match="lower-case"):
        journal.renew("E.2")
    assert journal.epoch == "e1"
