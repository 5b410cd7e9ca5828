"""What a build printed, bounded: the head and the tail are kept, what is lost between them is said. Pure."""

from __future__ import annotations

from collections import deque
from typing import Final

HEAD_CHARACTERS: Final = 64 * 1024
TAIL_CHARACTERS: Final = 64 * 1024
"""Together 128 Ki characters: a build of hundreds of packages prints some 100 KiB, and one row stays small."""

END_CHARACTERS: Final = 4000
"""Of an error's ``details.log``: about fifty lines."""


class BuildLog:
    """Append, then read."""

    def __init__(self) -> None:
        self._head = ""
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._lost = 0

    def add(self, text: str) -> None:
        """``text`` may come from the sandbox: control characters other than tab and newline are replaced."""
        text = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
        room = HEAD_CHARACTERS - len(self._head) if not self._tail else 0
        self._head += text[:room]
        if len(text) > room:
            self._add_to_tail(text[room:])

    def line(self, text: str) -> None:
        """A line of our own, at the beginning of a line."""
        whole = self.text
        self.add(f"{'' if not whole or whole.endswith(chr(10)) else chr(10)}{text}\n")

    def _add_to_tail(self, text: str) -> None:
        self._tail.append(text)
        self._tail_size += len(text)
        while (over := self._tail_size - TAIL_CHARACTERS) > 0:
            first = self._tail.popleft()
            if len(first) > over:
                self._tail.appendleft(first[over:])
            lost = min(len(first), over)
            self._tail_size -= lost
            self._lost += lost

    @property
    def truncated(self) -> bool:
        return self._lost > 0

    @property
    def text(self) -> str:
        between = f"\n[... {self._lost} characters left out ...]\n" if self._lost else ""
        return self._head + between + "".join(self._tail)

    @property
    def end(self) -> str:
        """For an error."""
        return self.text[-END_CHARACTERS:]
