"""The life a handle is of: what it may count on, and how the server is told.

What is in the memory of a sandbox (contexts, processes, terminals) ends when it is stopped or rolled back. A handle says with
every call of which life it is, so that a call which was meant for what is gone is `Stale` and does nothing, instead of
doing it to something else. A suspended sandbox that wakes up goes on in the same memory: its handles stay good.
"""

from __future__ import annotations

from typing import Final

EPOCH_HEADER: Final = "Cloche-Epoch"


class Life:
    """Shared by the handle of a sandbox and all handles made by it: when the one is up to date, so are the others."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch

    @property
    def headers(self) -> dict[str, str]:
        return {EPOCH_HEADER: self.epoch}
