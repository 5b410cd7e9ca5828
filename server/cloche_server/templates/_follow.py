"""The log of a build as server-sent events: what was printed so far, then what is printed, then how the build ended.

A cursor names a place in the log of one build; a build that is tried again has another epoch. ``seq`` is 1 behind the
last event, ``finished``; who comes back with that is told the outcome once more, so that every stream ends with it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Final

from cloche.errors import CursorBeyondHead, ForeignCursor
from cloche.journal import Cursor
from cloche_server.state import TemplateRow
from cloche_server.templates._log import BuildLog, Piece

HEARTBEAT_S: Final = 15.0
"""As in the streams of sandboxes."""

_HEARTBEAT: Final = b": heartbeat\n\n"


def place_in(row: TemplateRow, log: BuildLog, text: str | None) -> Cursor:
    """Where to go on. None: at the beginning. `MalformedCursor`, `ForeignCursor`, `CursorBeyondHead`."""
    epoch = f"{row.created_us:x}"
    if text is None:
        return Cursor(epoch, 0, 0)
    cursor = Cursor.parse(text)
    if cursor.epoch != epoch:
        raise ForeignCursor(
            f"cursor {cursor} belongs to the log of another build of {row.reference}",
            hint="read from the start",
            details={"epoch": epoch},
        )
    head = Cursor(epoch, int(log.closed), log.size)
    if cursor.offset > head.offset or cursor.seq > head.seq:
        raise CursorBeyondHead(f"cursor {cursor} is beyond the head {head}", details={"head": str(head)})
    return cursor


async def follow(log: BuildLog, cursor: Cursor, ended: Callable[[], TemplateRow]) -> AsyncGenerator[bytes, None]:
    """Events behind ``cursor``, to the end of the build; ``ended`` is asked then how it did. Comes within its bounds."""
    place, changed = cursor.offset, asyncio.Event()
    log.listeners.add(changed.set)
    try:
        while True:
            changed.clear()
            for piece in log.since(place):
                for kind, data, end in _events_of(piece, place):
                    yield _event(kind, data, Cursor(cursor.epoch, 0, end))
                place += piece.lost + len(piece.text)
            if log.closed:
                yield _event("finished", _outcome(ended()), Cursor(cursor.epoch, 1, place))
                return
            if not await _set_within(changed, HEARTBEAT_S):
                yield _HEARTBEAT
    finally:
        log.listeners.discard(changed.set)


def _events_of(piece: Piece, place: int) -> list[tuple[str, dict[str, object], int]]:
    found: list[tuple[str, dict[str, object], int]] = []
    if piece.lost:
        found.append(("gap", {"characters": piece.lost}, place + piece.lost))
    return [*found, ("output", {"text": piece.text}, place + piece.lost + len(piece.text))]


def _outcome(row: TemplateRow) -> dict[str, object]:
    return {"template": row.reference, "state": row.state, "failure": row.failure}


def _event(kind: str, data: dict[str, object], cursor: Cursor) -> bytes:
    return f"id: {cursor}\nevent: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "replace")


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
