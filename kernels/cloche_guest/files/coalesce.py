"""Many changes of one file in a short time become few. Pure; the time is passed in.

Only ``modify`` and ``attrib`` are held back. The first is given out at once, so nobody waits; what follows within the window
is one more at its end, so the last state is always told. Everything else passes at once and in order: before a file is
moved, what is held back of it is given out under its old name; when it is deleted, it is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from cloche_guest.files.watch_tree import Change

Key = tuple[str, str]


class Coalescer:
    """``window_s`` 0: everything passes."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._told: OrderedDict[Key, float] = OrderedDict()
        self._held: OrderedDict[Key, float] = OrderedDict()

    def take(self, change: Change, now: float) -> Iterator[Change]:
        """What is to be given out now, in order."""
        if change.kind in ("modify", "attrib"):
            if self._may_pass(change, now):
                yield change
            return
        if change.is_directory or change.kind in ("overflow", "stopped"):
            yield from self._release_all()
        elif change.kind == "move":
            yield from self._release(change.path)
            self._drop(change.destination or "")
        elif change.kind in ("delete", "create"):
            self._drop(change.path)
        yield change
        if change.kind == "create":
            self._mark(("modify", change.path), now)

    def due(self, now: float) -> Iterator[Change]:
        """What was held back long enough."""
        while self._held:
            key, at = next(iter(self._held.items()))
            if at > now:
                return
            del self._held[key]
            self._mark(key, now)
            yield Change(*key)

    def next_due(self) -> float | None:
        """When to ask again."""
        return next(iter(self._held.values()), None)

    def _may_pass(self, change: Change, now: float) -> bool:
        if not self._window_s or change.is_directory:
            return True
        key = (change.kind, change.path)
        last = self._told.get(key)
        if last is not None and now < last + self._window_s:
            self._held.setdefault(key, last + self._window_s)
            return False
        self._mark(key, now)
        return True

    def _mark(self, key: Key, now: float) -> None:
        """Keys stay ordered by time, so those that are out of the window are at the front."""
        if not self._window_s:
            return
        self._told.pop(key, None)
        self._told[key] = now
        while (oldest := next(iter(self._told.values()))) + self._window_s < now and oldest != now:
            self._told.popitem(last=False)

    def _release(self, path: str) -> Iterator[Change]:
        for kind in ("modify", "attrib"):
            if self._held.pop((kind, path), None) is not None:
                yield Change(kind, path)

    def _release_all(self) -> Iterator[Change]:
        while self._held:
            key, _ = self._held.popitem(last=False)
            yield Change(*key)

    def _drop(self, path: str) -> None:
        for kind in ("modify", "attrib"):
            self._held.pop((kind, path), None)
            self._told.pop((kind, path), None)
