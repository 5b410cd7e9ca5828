"""The output of an exec: what the journal has of each stream, within a cap, head and tail. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from cloche.journal import Gap, Record
from cloche.models import CapturedOutput, Data


@dataclass(slots=True)
class _Pieces:
    head: list[bytes] = field(default_factory=list)
    tail: list[bytes] = field(default_factory=list)


def capture(items: Iterable[Record | Gap], totals: dict[str, int], max_bytes: int) -> dict[str, CapturedOutput]:
    """Each stream's output. ``totals``: bytes it put out, kept or not."""
    pieces = {stream: _Pieces() for stream in totals}
    behind_gap = False
    for item in items:
        if isinstance(item, Gap):
            behind_gap = True
        elif item.kind in pieces:
            (pieces[item.kind].tail if behind_gap else pieces[item.kind].head).append(item.data)
    return {
        stream: capped(b"".join(p.head), b"".join(p.tail), totals[stream], max_bytes) for stream, p in pieces.items()
    }


def capped(head: bytes, tail: bytes, total: int, max_bytes: int) -> CapturedOutput:
    """``head`` and ``tail`` are what is kept of ``total`` bytes; nothing is missing when they add up."""
    if len(head) + len(tail) == total:
        if total <= max_bytes:
            return CapturedOutput(data=Data.of(head + tail), total_bytes=total)
        head = tail = head + tail
    first = _without_half_character(head[: max_bytes // 2])
    last = _from_whole_character(tail[-(max_bytes - max_bytes // 2) :])
    return CapturedOutput(
        data=Data.of(first), tail=Data.of(last), total_bytes=total, omitted_bytes=total - len(first) - len(last)
    )


def _without_half_character(data: bytes) -> bytes:
    """UTF-8 that is cut at its end without the character that is cut, so that text stays text; else unchanged."""
    for size in range(1, min(4, len(data)) + 1):
        byte = data[-size]
        if byte & 0xC0 != 0x80:
            wanted = 1 if byte < 0x80 else 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4
            return data[:-size] if size < wanted and byte >= 0xC0 else data
    return data


def _from_whole_character(data: bytes) -> bytes:
    """The same at its beginning."""
    for start in range(min(4, len(data))):
        if data[start] & 0xC0 != 0x80:
            return data[start:]
    return data
