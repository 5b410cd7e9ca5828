"""What a build printed, bounded: the head and the tail are kept, what is lost between them is said. Pure.

Places in it are counted in characters from its very beginning, those that are lost included.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

HEAD_CHARACTERS: Final = 64 * 1024
TAIL_CHARACTERS: Final = 64 * 1024
"""Together 128 Ki characters: a build of hundreds of packages prints some 100 KiB, and one row stays small."""

END_CHARACTERS: Final = 4000
"""Of an error's ``details.log``: about fifty lines."""


_LOST: Final = re.compile(r"\n\[\.\.\. (\d+) characters left out \.\.\.\]\n")


@dataclass(frozen=True, slots=True)
class Piece:
    """``text``, which follows ``lost`` characters that a reader can no longer get."""

    lost: int
    text: str


class BuildLog:
    """Append, read, `close`. ``listeners`` are called after every change."""

    def __init__(self) -> None:
        self._head = ""
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._lost = 0
        self.closed = False
        self.listeners: set[Callable[[], None]] = set()

    @classmethod
    def stored(cls, text: str, truncated: bool) -> BuildLog:
        """One whose build is over, from its `text` and whether it was `truncated`."""
        log = cls()
        log._head, rest = text[:HEAD_CHARACTERS], text[HEAD_CHARACTERS:]
        left_out = _LOST.match(rest) if truncated else None
        if left_out is not None:
            log._lost, rest = int(left_out[1]), rest[left_out.end() :]
        if rest:
            log._tail.append(rest)
            log._tail_size = len(rest)
        log.closed = True
        return log

    def add(self, text: str) -> None:
        """``text`` may come from the sandbox: control characters other than tab and newline are replaced."""
        text = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
        room = HEAD_CHARACTERS - len(self._head) if not self._tail else 0
        self._head += text[:room]
        if len(text) > room:
            self._add_to_tail(text[room:])
        self._changed()

    def close(self) -> None:
        """The build is over."""
        self.closed = True
        self._changed()

    def _changed(self) -> None:
        for listener in list(self.listeners):
            listener()

    @property
    def size(self) -> int:
        """All that ever was added, in characters."""
        return len(self._head) + self._lost + self._tail_size

    def since(self, place: int) -> list[Piece]:
        """What follows ``place``, of 0 to `size`; two pieces when the hole is between them."""
        head, tail_begins = self._head[place:], len(self._head) + self._lost
        pieces = [Piece(0, head)] if head else []
        if place < self.size and self._tail_size:
            seen = max(place, len(self._head))
            tail = "".join(self._tail)[max(0, seen - tail_begins) :]
            pieces.append(Piece(max(0, tail_begins - seen), tail))
        return pieces

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
