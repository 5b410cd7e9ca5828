"""Looking for a text in output while it comes. Pure: bytes in, a match or none out.

Rules
-----
* Each stream is decoded by itself, with a decoder that remembers half characters; what is not UTF-8 becomes U+FFFD.
* A text is found wherever the chunks are cut: the end of what was searched is kept, as much as the text is long.
* A regular expression sees a window: the newest `WINDOW` characters before a chunk, and the chunk. A longer match is not
  found. ``^`` and ``$`` mean lines.
* A match of an expression that ends where the output ends so far may become longer (``port (\\d+)`` in ``port 80`` before
  ``80`` comes): it is not `complete`, and `feed` may be asked again with what comes.
* A search has a time limit. Python's engine can take for ever for a short text, and holds the interpreter while it does;
  it does look for signals, so an alarm ends it.
"""

from __future__ import annotations

import codecs
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final, Literal, TypeVar

WINDOW: Final = 64 * 1024
LONGEST_SHOWN: Final = 4096
MAX_GROUPS: Final = 100

SEARCH_S: Final = 0.25
"""Of one search in at most a window and a chunk; ordinary patterns take a millisecond."""

T = TypeVar("T")
StreamName = Literal["stdout", "stderr"]


class TooSlow(Exception):
    """The pattern needs more than `SEARCH_S`."""


@dataclass(frozen=True, slots=True)
class Match:
    """What was found."""

    stream: StreamName
    text: str
    line: str
    groups: list[str | None]
    complete: bool = True


@dataclass(slots=True)
class _Window:
    decoder: codecs.IncrementalDecoder
    text: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a matcher is; for `LogMatcher.go_back`."""

    states: dict[str, tuple[str, tuple[bytes, int]]]


class LogMatcher:
    """One pattern over the output of one process. `feed` it in order; after a complete match it is done.

    Raises:
        re.error: the expression is none.
    """

    def __init__(self, pattern: str, *, regex: bool, streams: frozenset[str], search_s: float = SEARCH_S) -> None:
        self._pattern = pattern
        self._search_s = search_s
        self._expression = _bounded(search_s, lambda: re.compile(pattern, re.MULTILINE)) if regex else None
        decoder = codecs.getincrementaldecoder("utf-8")
        self._windows = {stream: _Window(decoder(errors="replace")) for stream in sorted(streams)}

    def feed(self, stream: str, data: bytes) -> Match | None:
        """The first match that ends in `data`, if it is of a stream that counts.

        Raises:
            TooSlow
        """
        window = self._windows.get(stream)
        if window is None:
            return None
        text = window.text + window.decoder.decode(data)
        found = self._find(text)
        kept = WINDOW if self._expression is not None else len(self._pattern) - 1
        window.text = text[-kept:] if kept else ""
        if found is None:
            return None
        start, end, groups = found
        name: StreamName = "stdout" if stream == "stdout" else "stderr"
        complete = self._expression is None or end < len(text) or text.endswith("\n")
        return Match(name, text[start:end][:LONGEST_SHOWN], _line_around(text, start, end), groups, complete)

    def place(self) -> Place:
        """Where it is now."""
        return Place({name: (window.text, window.decoder.getstate()) for name, window in self._windows.items()})

    def go_back(self, place: Place) -> None:
        """Forget what was fed since."""
        for name, (text, state) in place.states.items():
            self._windows[name].text = text
            self._windows[name].decoder.setstate(state)

    def miss(self) -> None:
        """Output is missing here: what was before does not touch what comes."""
        for window in self._windows.values():
            window.text = ""
            window.decoder.reset()

    def _find(self, text: str) -> tuple[int, int, list[str | None]] | None:
        if self._expression is None:
            start = text.find(self._pattern)
            return None if start < 0 else (start, start + len(self._pattern), [])
        expression = self._expression
        match = _bounded(self._search_s, lambda: expression.search(text))
        if match is None:
            return None
        groups = [None if group is None else group[:LONGEST_SHOWN] for group in match.groups()[:MAX_GROUPS]]
        return match.start(), match.end(), groups


def _line_around(text: str, start: int, end: int) -> str:
    begin = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", end)
    return text[max(begin, start - LONGEST_SHOWN // 2) : len(text) if stop < 0 else stop][:LONGEST_SHOWN].rstrip("\r")


def _bounded(seconds: float, work: Callable[[], T]) -> T:
    with _alarm(seconds):
        return work()


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in here after `seconds` of this thread's CPU time: a machine that is busy with something else is no
    fault of the pattern. An alarm that was set before goes on behind it."""
    assert threading.current_thread() is threading.main_thread(), "only the main thread gets signals"

    def ring(_number: int, _frame: FrameType | None) -> None:
        left = seconds - (time.thread_time() - cpu_began)
        if left <= 0:
            raise TooSlow
        signal.setitimer(signal.ITIMER_REAL, max(left, 0.001))

    began, cpu_began = time.monotonic(), time.thread_time()
    before = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (time.monotonic() - began)), interval)
