"""The journal: an append-only, bounded, sequenced log with cursors. Pure: no sockets, no clock, no event loop.

Rules
-----
* Records get consecutive sequence numbers from 0; each also knows its byte offset, the sum of all bytes before it. Both
  count everything ever appended, dropped or not. A cursor names a place *between* records as ``epoch.seq.offset``, so
  what a reader missed is plain subtraction.
* Replay and live are one read path: `Journal.read` walks forward from a cursor. There is no subscription to race with.
* Whole records are dropped, never bytes out of one. A chunk over `record_bytes` is split when it is appended.
* Three budgets bound the memory. The **head** pins the first `head_bytes`, for ever. **Kept** records (results, errors,
  ends) have `kept_bytes`, so a flood of text cannot push a plot out. The **tail** holds the newest `max_bytes` of the
  rest. Each budget drops its own oldest record first.
* Dropped records leave holes. A reader that reaches a hole gets one `Gap` with the exact count of what *it* missed.
* A cursor fails as malformed, foreign (of another epoch) or beyond the head; it never restarts a reader silently.
* A journal that goes on in a copy of its process gets another epoch (`renew`): what is appended from then on differs
  between the copies, so a cursor of the one must not be taken by the other.
* The producer never waits for readers.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from cloche.errors import CursorBeyondHead, ForeignCursor, MalformedCursor

RECORD_BYTES: Final = 64 * 1024
"""Largest piece of a split chunk: one read of a PTY or pipe, and small enough to interleave with other frames."""

Splitter = Callable[[bytes, int], Iterator[bytes]]

_CURSOR = re.compile(r"([a-z0-9]{1,32})\.(0|[1-9][0-9]{0,17})\.(0|[1-9][0-9]{0,17})")


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in one journal: before the record `seq`, after `offset` bytes. Its text form is opaque to clients."""

    epoch: str
    seq: int
    offset: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.seq}.{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """`MalformedCursor` for what is none of ours."""
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise MalformedCursor(f"{text[:80]!r} is not a cursor", hint="send a cursor exactly as it was received")
        return cls(match[1], int(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class Record:
    """One record; `cursor` points behind it."""

    kind: str
    data: bytes
    cursor: Cursor

    @property
    def seq(self) -> int:
        return self.cursor.seq - 1

    @property
    def offset(self) -> int:
        """Bytes appended before this record."""
        return self.cursor.offset - len(self.data)


@dataclass(frozen=True, slots=True)
class Gap:
    """Records this reader can no longer get; `cursor` points behind them."""

    records: int
    bytes: int
    cursor: Cursor


class RecordTooLarge(ValueError):
    """A record that may not be split is larger than its whole budget. The producer must shorten it and say so."""


class _Budget:
    """Newest records of one class, as many as fit."""

    __slots__ = ("bytes", "max_bytes", "max_records", "seqs")

    def __init__(self, max_bytes: int, max_records: int) -> None:
        self.max_bytes = max_bytes
        self.max_records = max_records
        self.bytes = 0
        self.seqs: deque[int] = deque()

    def fits(self, size: int) -> bool:
        return self.bytes + size <= self.max_bytes and len(self.seqs) < self.max_records

    def add(self, record: Record) -> None:
        self.bytes += len(record.data)
        self.seqs.append(record.seq)

    def is_over(self) -> bool:
        return self.bytes > self.max_bytes or len(self.seqs) > self.max_records


class _Holes:
    """Ranges of dropped records, as pairs of cursors, disjoint and in order."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[Cursor] = []
        self._ends: list[Cursor] = []

    def add(self, start: Cursor, end: Cursor) -> None:
        """Dig out the record between `start` and `end`, joining holes it touches."""
        at = bisect_right(self._starts, start.seq, key=_seq)
        if at < len(self._starts) and self._starts[at].seq == end.seq:
            end = self._ends[at]
            del self._starts[at], self._ends[at]
        if at and self._ends[at - 1].seq == start.seq:
            self._ends[at - 1] = end
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)

    def around(self, seq: int) -> tuple[Cursor, Cursor]:
        """The hole that contains `seq`."""
        at = bisect_right(self._starts, seq, key=_seq) - 1
        return self._starts[at], self._ends[at]


def _seq(cursor: Cursor) -> int:
    return cursor.seq


class Journal:
    """See the module's rules.

    Args:
        epoch: random name of this journal's life, at most 32 lower-case letters and digits.
        max_bytes: budget of the tail.
        max_records: most records in each of head, tail and kept. A record costs some 200 bytes beyond its data.
        head_bytes: budget of the pinned head; 0 for none.
        kept_bytes: budget of kept records; 0 when nothing is appended with ``keep``.
        record_bytes: largest piece of a split chunk.
    """

    def __init__(
        self,
        epoch: str,
        *,
        max_bytes: int,
        max_records: int = 20_000,
        head_bytes: int = 0,
        kept_bytes: int = 0,
        record_bytes: int = RECORD_BYTES,
    ) -> None:
        if record_bytes > max_bytes:
            raise ValueError(f"max_bytes ({max_bytes}) must hold at least one record of record_bytes ({record_bytes})")
        self.epoch = _checked(epoch)
        self.head = self.start
        self._record_bytes = record_bytes
        self._head: _Budget | None = _Budget(head_bytes, max_records) if head_bytes else None
        self._tail = _Budget(max_bytes, max_records)
        self._kept = _Budget(kept_bytes, max_records)
        self._records: dict[int, Record] = {}
        self._holes = _Holes()
        self._head_size = 0

    @property
    def start(self) -> Cursor:
        """Before the first record ever appended."""
        return Cursor(self.epoch, 0, 0)

    @property
    def stored_bytes(self) -> int:
        """Bytes of data held now."""
        return self._head_size + self._tail.bytes + self._kept.bytes

    def renew(self, epoch: str) -> None:
        """Another life: all cursors given out so far are foreign from now on. Nothing that is stored changes."""
        self.epoch = _checked(epoch)
        self.head = self._now(self.head)

    def append(self, kind: str, data: bytes, *, keep: bool = False, split: Splitter | None = None) -> None:
        """Add a record, or several when `split` may cut `data`.

        Raises:
            RecordTooLarge: it may not be cut and exceeds its budget; nothing was appended.
        """
        if split is not None and len(data) > self._record_bytes:
            for piece in split(data, self._record_bytes):
                self._append_one(kind, piece, keep)
        else:
            self._append_one(kind, data, keep)

    def parse(self, text: str | None) -> Cursor:
        """The cursor a client sent; None stands for the start.

        Raises:
            MalformedCursor, ForeignCursor, CursorBeyondHead
        """
        if text is None:
            return self.start
        cursor = Cursor.parse(text)
        self._check(cursor)
        return cursor

    def read(self, cursor: Cursor, *, max_records: int = 256, max_bytes: int = 1024 * 1024) -> list[Record | Gap]:
        """What comes after `cursor`, in order; empty at the head.

        At most `max_records` items, and no further record once `max_bytes` are reached (one record always fits).
        """
        items: list[Record | Gap] = []
        size = 0
        while cursor.seq < self.head.seq and len(items) < max_records and size < max_bytes:
            item = self._item_at(cursor)
            items.append(item)
            size += len(item.data) if isinstance(item, Record) else 0
            cursor = item.cursor
        return items

    def _append_one(self, kind: str, data: bytes, keep: bool) -> None:
        budget = self._kept if keep else self._tail
        if len(data) > budget.max_bytes:
            raise RecordTooLarge(f"a {kind} record of {len(data)} bytes exceeds its budget of {budget.max_bytes}")
        self.head = Cursor(self.epoch, self.head.seq + 1, self.head.offset + len(data))
        record = Record(kind, data, self.head)
        self._records[record.seq] = record
        if not keep and self._pin(record):
            return
        budget.add(record)
        while budget.is_over():
            self._drop_oldest(budget)

    def _pin(self, record: Record) -> bool:
        """Put the record into the head while that is open; the first one that does not fit closes it for ever."""
        if self._head is None:
            return False
        if not self._head.fits(len(record.data)):
            self._head = None
            return False
        self._head.add(record)
        self._head_size = self._head.bytes
        return True

    def _drop_oldest(self, budget: _Budget) -> None:
        record = self._records.pop(budget.seqs.popleft())
        budget.bytes -= len(record.data)
        self._holes.add(Cursor(self.epoch, record.seq, record.offset), record.cursor)

    def _item_at(self, cursor: Cursor) -> Record | Gap:
        record = self._records.get(cursor.seq)
        if record is not None:
            return record if record.cursor.epoch == self.epoch else replace(record, cursor=self._now(record.cursor))
        _, end = self._holes.around(cursor.seq)
        return Gap(end.seq - cursor.seq, end.offset - cursor.offset, self._now(end))

    def _now(self, cursor: Cursor) -> Cursor:
        """The same place in this life. What is stored keeps the epoch it was stored in; only readers need today's."""
        return cursor if cursor.epoch == self.epoch else replace(cursor, epoch=self.epoch)

    def _check(self, cursor: Cursor) -> None:
        if cursor.epoch != self.epoch:
            raise ForeignCursor(
                f"cursor {cursor} belongs to another journal; this one's epoch is {self.epoch}",
                hint="the stream it came from has ended; read from the start",
                details={"epoch": self.epoch},
            )
        if cursor.seq > self.head.seq:
            raise CursorBeyondHead(f"cursor {cursor} is beyond the head {self.head}", details={"head": str(self.head)})
        if not self._is_consistent(cursor):
            raise MalformedCursor(f"cursor {cursor} names no place in this journal")

    def _is_consistent(self, cursor: Cursor) -> bool:
        """Sequence number and offset belong together, as far as what is stored can tell."""
        if cursor.seq == self.head.seq:
            return cursor.offset == self.head.offset
        record = self._records.get(cursor.seq)
        if record is not None:
            return cursor.offset == record.offset
        start, end = self._holes.around(cursor.seq)
        is_in = start.offset <= cursor.offset <= end.offset
        return is_in and (cursor.seq > start.seq or cursor.offset == start.offset)


def _checked(epoch: str) -> str:
    if not re.fullmatch(r"[a-z0-9]{1,32}", epoch):
        raise ValueError(f"epoch must be 1 to 32 lower-case letters and digits, not {epoch!r}")
    return epoch


def split_bytes(data: bytes, size: int) -> Iterator[bytes]:
    """Cut anywhere: for byte streams."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


def split_text(data: bytes, size: int) -> Iterator[bytes]:
    """Cut UTF-8 only between characters, so that every piece decodes by itself. `size` is at least 4."""
    start = 0
    while start < len(data):
        end = min(start + size, len(data))
        while end < len(data) and start < end - 1 and data[end] & 0xC0 == 0x80:
            end -= 1
        yield data[start:end]
        start = end
