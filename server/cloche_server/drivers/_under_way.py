"""What this process is doing to sandboxes: starts, removals, and changes of their state one at a time."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class UnderWay:
    """By the ids of sandboxes."""

    def __init__(self) -> None:
        self.starts: dict[str, asyncio.Task[None]] = {}
        self.removals: dict[str, asyncio.Task[None]] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def lock(self, sandbox_id: str) -> asyncio.Lock:
        """One of `pause`, `resume` and `checkpoint` at a time. `destroy` waits for none of them: they fail then."""
        lock = self._locks.get(sandbox_id)
        if lock is None:
            lock = self._locks[sandbox_id] = asyncio.Lock()
        return lock
