"""The output log of one terminal: all bytes with absolute offsets, as many as two budgets allow. Pure.

Rules
-----
* Offsets count every byte ever put out, from 0. Readers are cursors walking forward; old and new bytes are one path.
* The log is a list of segments of about 64 KiB. A segment begins at parser ground and knows the modes and the size in
  force there, so reading may begin at any segment. Whole segments are dropped, never bytes: a cut sequence cannot happen.
* A sequence longer than a segment lets it grow to `MAX_SEGMENT_BYTES`; the segment after it begins inside the
  sequence.
* Bytes of the alternate screen are in segments of their own, with a budget of their own: a busy full-screen program must
  not push out the shell's output under it (measured: tail logs restored 8 % of "vim left" screens). Ended sessions are
  dropped first and as a whole.
* Dropping in the middle leaves a hole. A reader that reaches one gets a `Hole` that says what is missing and which modes
  change over it.
* Size changes are records with offsets; a reader gets each one exactly when it reaches its offset.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final

from cloche_guest.terminals.modes import FRESH, Modes, ModeTracker

SEGMENT_BYTES: Final = 64 * 1024
MAX_SEGMENT_BYTES: Final = 1024 * 1024
NORMAL_BYTES: Final = 4 * 1024 * 1024
"""Some 50,000 lines; a browser takes it in in about 0.3 s."""
ALTERNATE_BYTES: Final = 1024 * 1024
MAX_SEGMENTS: Final = 1024
"""Programs that switch screens all the time make tiny segments; each costs some 500 bytes beyond its data."""
MAX_SIZES: Final = 10_000
"""Size changes with output between them, of which nothing was dropped yet."""


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Columns and rows."""

    cols: int
    rows: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Output at an offset."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class SizeChange:
    """From `offset` on, `size` is in force. `seq` orders changes at one offset."""

    offset: int
    size: Dimensions
    seq: int


@dataclass(frozen=True, slots=True)
class Hole:
    """Output from `start` to `end` is gone. Modes were `before` where it starts and are `after` where it ends."""

    start: int
    end: int
    before: Modes
    after: Modes
    size: Dimensions


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader is: behind `offset` bytes and before the size change `seq`."""

    offset: int
    seq: int


Item = Chunk | SizeChange | Hole


class _Segment:
    __slots__ = ("data", "end_modes", "modes", "offset", "session", "size")

    def __init__(self, offset: int, modes: Modes, size: Dimensions, session: int) -> None:
        self.offset = offset
        self.modes = modes
        self.end_modes = modes
        self.size = size
        self.session = session
        self.data: bytes | bytearray = bytearray()

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


class OutputLog:
    """See the module's rules."""

    def __init__(
        self, size: Dimensions, *, normal_bytes: int = NORMAL_BYTES, alternate_bytes: int = ALTERNATE_BYTES
    ) -> None:
        self.size = size
        self.tracker = ModeTracker()
        self.head = 0
        self._normal_budget = normal_bytes
        self._alternate_budget = alternate_bytes
        self._segments = [_Segment(0, FRESH, size, 0)]
        self._sizes = [SizeChange(0, size, 0)]
        self._bytes = {False: 0, True: 0}
        self._sessions = 0

    @property
    def oldest(self) -> int:
        """Where the oldest segment begins."""
        return self._segments[0].offset

    @property
    def oldest_modes(self) -> Modes:
        """In force at `oldest`."""
        return self._segments[0].modes

    @property
    def oldest_size(self) -> Dimensions:
        """In force at `oldest`."""
        return self._segments[0].size

    @property
    def alternate(self) -> bool:
        """The alternate screen is shown."""
        return self._open.session != 0

    @property
    def stored_bytes(self) -> int:
        """Bytes held now."""
        return self._bytes[False] + self._bytes[True]

    @property
    def end(self) -> Place:
        """Behind everything."""
        return Place(self.head, self._sizes[-1].seq + 1)

    def append(self, data: bytes) -> None:
        """Add output."""
        for start in range(0, len(data), SEGMENT_BYTES):
            self._append(data[start : start + SEGMENT_BYTES])

    def _append(self, data: bytes) -> None:
        cuts = self.tracker.feed(data)
        self._open.data += data
        self.head += len(data)
        self._bytes[self._open.session != 0] += len(data)
        for cut in cuts:
            if cut.enters:
                self._sessions += 1
            self._split(cut.offset, cut.modes, self._sessions if cut.enters else 0, keep_empty=True)
        if len(self._open.data) >= SEGMENT_BYTES:
            self._split_when_possible()
        self._evict()

    def resize(self, size: Dimensions) -> None:
        """Another size from the head on."""
        if size == self.size:
            return
        self.size = size
        self.tracker.resized()
        change = SizeChange(self.head, size, self._sizes[-1].seq + 1)
        if self._sizes[-1].offset == self.head:
            self._sizes.pop()
        self._sizes.append(change)
        if self._open.offset == self.head:
            self._open.size = size
        if len(self._sizes) > MAX_SIZES:
            del self._sizes[0]

    def place(self, offset: int) -> Place:
        """For a reader that has everything before `offset`. A size change right there is given again: harmless."""
        at = bisect_left(self._sizes, offset, key=lambda change: change.offset)
        return Place(offset, self._sizes[at].seq if at < len(self._sizes) else self._sizes[-1].seq + 1)

    def size_before(self, place: Place) -> Dimensions:
        """What a reader at `place` has been told."""
        at = bisect_left(self._sizes, place.seq, key=lambda change: change.seq)
        return self._sizes[at - 1].size if at else self.oldest_size

    def is_whole(self, offset: int) -> bool:
        """Nothing between `offset` and the head is missing."""
        if not self.oldest <= offset <= self.head:
            return False
        at = self._index(offset)
        if offset > self._segments[at].end:
            return False
        pairs = zip(self._segments[at:], self._segments[at + 1 :], strict=False)
        return all(one.end == two.offset for one, two in pairs)

    def read(self, place: Place, max_bytes: int) -> tuple[Item, Place] | None:
        """What comes at `place` (not before `oldest`), and the place behind it; None at the end."""
        assert place.offset >= self.oldest
        change = self._size_at(place.seq)
        if change is not None and change.offset <= place.offset:
            return change, Place(place.offset, change.seq + 1)
        if place.offset >= self.head:
            return None
        at = self._index(place.offset)
        segment = self._segments[at]
        if place.offset >= segment.end:
            return self._hole(segment, self._segments[at + 1], place)
        start = place.offset - segment.offset
        limit = start + max_bytes if change is None else min(start + max_bytes, change.offset - segment.offset)
        data = bytes(memoryview(segment.data)[start:limit])
        return Chunk(place.offset, data), Place(place.offset + len(data), place.seq)

    @property
    def _open(self) -> _Segment:
        return self._segments[-1]

    def _index(self, offset: int) -> int:
        """The last segment that begins at or before `offset`."""
        return bisect_right(self._segments, offset, key=lambda segment: segment.offset) - 1

    def _size_at(self, seq: int) -> SizeChange | None:
        at = bisect_left(self._sizes, seq, key=lambda change: change.seq)
        return self._sizes[at] if at < len(self._sizes) else None

    def _hole(self, before: _Segment, after: _Segment, place: Place) -> tuple[Hole, Place]:
        hole = Hole(place.offset, after.offset, before.end_modes, after.modes, after.size)
        return hole, Place(after.offset, self.place(after.offset).seq)

    def _split_when_possible(self) -> None:
        ground = self.tracker.ground_offset
        if ground > self._open.offset:
            self._split(ground, self.tracker.snapshot(), self._open.session)
        elif len(self._open.data) >= MAX_SEGMENT_BYTES:
            self._split(self.head, self.tracker.snapshot(), self._open.session)

    def _split(self, offset: int, modes: Modes, session: int, *, keep_empty: bool = False) -> None:
        """End the open segment at `offset` and begin another. What lies behind `offset` moves into it."""
        old = self._open
        at = max(0, offset - old.offset)
        assert isinstance(old.data, bytearray)
        rest = bytes(old.data[at:])
        new = _Segment(old.offset + at, modes, self._size_for(old.offset + at), session)
        new.data += rest
        self._bytes[old.session != 0] -= len(rest)
        self._bytes[session != 0] += len(rest)
        if at == 0 and keep_empty:
            self._segments[-1] = new
            return
        old.data = bytes(old.data[:at])
        old.end_modes = modes
        self._segments.append(new)

    def _size_for(self, offset: int) -> Dimensions:
        at = bisect_right(self._sizes, offset, key=lambda change: change.offset)
        return self._sizes[at - 1].size if at else self.oldest_size

    def _evict(self) -> None:
        while self._bytes[True] > self._alternate_budget and self._drop_alternate():
            pass
        while self._bytes[False] > self._normal_budget and self._drop_first_normal():
            pass
        while len(self._segments) > MAX_SEGMENTS:
            self._drop(0, 1)

    def _drop_alternate(self) -> bool:
        """The oldest session as a whole when it has ended, else its oldest segment."""
        at = next(at for at, segment in enumerate(self._segments) if segment.session)
        session, end = self._segments[at].session, at + 1
        if session != self._open.session:
            while self._segments[end].session == session:
                end += 1
        elif self._segments[at] is self._open:
            return False
        self._drop(at, end)
        return True

    def _drop_first_normal(self) -> bool:
        """The oldest normal segment, with everything before it."""
        at = next(at for at, segment in enumerate(self._segments) if not segment.session)
        if self._segments[at] is self._open:
            return False
        self._drop(0, at + 1)
        return True

    def _drop(self, start: int, end: int) -> None:
        for segment in self._segments[start:end]:
            self._bytes[segment.session != 0] -= len(segment.data)
        del self._segments[start:end]
        if start == 0:
            gone = bisect_right(self._sizes, self.oldest, key=lambda change: change.offset) - 1
            del self._sizes[: max(0, gone)]
