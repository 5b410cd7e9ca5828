"""The journal of a context: what happens to its kernel and runs, and output that comes after its run has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from cloche.journal import Journal, split_text
from cloche.journal_feed import JournalFeed
from cloche_guest.contexts._router import Shown, Text, encode, encode_shown
from cloche_guest.contexts._run import MIB
from cloche_guest.identity import new_epoch

MAX_BYTES: Final = 4 * MIB
MAX_RECORDS: Final = 4000
"""The events of 800 runs; a record costs some 600 bytes, whatever is in it."""

_PIECE_BYTES: Final = 64 * 1024


class ContextJournal:
    """Every record is JSON; text comes in pieces of 64 KiB with the run it belongs to."""

    def __init__(self) -> None:
        self.feed = JournalFeed(Journal(new_epoch(), max_bytes=MAX_BYTES, max_records=MAX_RECORDS))

    def note(self, kind: str, data: Mapping[str, JsonValue]) -> None:
        """Append an event of ours."""
        self.feed.append(kind, encode(dict(data)))

    def note_text(self, run_id: str | None, text: Text) -> None:
        """Append late output."""
        for piece in split_text(text.text.encode("utf-8", "replace"), _PIECE_BYTES):
            self.note(text.stream, {"run_id": run_id, "text": piece.decode("utf-8", "replace")})

    def note_shown(self, kind: str, run_id: str | None, shown: Shown) -> None:
        """Append a display or an update of one; what is over the whole budget is told without its content."""
        encoded = encode_shown({"run_id": run_id, **shown.data})
        if len(encoded) > MAX_BYTES:
            encoded = encode({"run_id": run_id, **shown.data, "data": {}, "metadata": {}})
        self.feed.append(kind, encoded)
