"""What was executed in a context: our own record, as kernels run without a history database."""

from __future__ import annotations

from collections import deque

from cloche.models import HistoryEntry

MAX_ENTRIES = 1000
MAX_CODE_CHARS = 16 * 1024 * 1024


class HistoryLog:
    """The newest entries within both bounds."""

    def __init__(self) -> None:
        self._entries: deque[HistoryEntry] = deque()
        self._chars = 0

    def add(self, entry: HistoryEntry) -> None:
        """Append; the oldest entries make room."""
        self._entries.append(entry)
        self._chars += len(entry.code)
        while len(self._entries) > MAX_ENTRIES or (self._chars > MAX_CODE_CHARS and len(self._entries) > 1):
            self._chars -= len(self._entries.popleft().code)

    def newest(self, limit: int) -> list[HistoryEntry]:
        """At most `limit`, the oldest first."""
        return list(self._entries)[-limit:]
