"""Which older snapshots a new one replaces. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cloche_server.state import SnapshotRow

_COUNTER: Final = re.compile(r"[-_.0-9]+$")


def series_of(name: str | None) -> str | None:
    """The name without the number or date at its end: ``nightly-2`` and ``nightly-2026-01-31`` are of one series."""
    return None if name is None else _COUNTER.sub("", name)


def replaced(rows: Sequence[SnapshotRow], newest: SnapshotRow, keep_last: int) -> list[SnapshotRow]:
    """Those of ``newest``'s sandbox and series beyond the ``keep_last`` newest; never one that a template needs."""
    same = [
        row for row in rows if row.sandbox_id == newest.sandbox_id and series_of(row.name) == series_of(newest.name)
    ]
    kept = [row for row in same if row.state in ("ready", "broken") and row.template is None]
    kept.sort(key=lambda row: (row.created_us, row.id), reverse=True)
    return kept[keep_last:]
