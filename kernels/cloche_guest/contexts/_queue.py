"""The order of runs in one context. Pure: a queue and an event in, a new queue and the runs it aborts out.

* One run runs at a time; the others wait in the order they came. The kernel never sees a run that waits.
* A run that did not end well (error, interrupted, timed out, kernel death) aborts everything that waits behind it at
  that moment, if it was made with ``stop_on_error``; otherwise the queue goes on.
* A run cancelled in the queue aborts nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cloche.models import RunStatus

MAX_QUEUE = 1000


@dataclass(frozen=True, slots=True)
class Queue:
    """Ids of runs, the oldest first."""

    running: str | None = None
    waiting: tuple[str, ...] = ()

    @property
    def is_full(self) -> bool:
        return len(self.waiting) >= MAX_QUEUE

    @property
    def run_ids(self) -> list[str]:
        """The running one first."""
        return ([self.running] if self.running else []) + list(self.waiting)

    def add(self, run_id: str) -> Queue:
        """Put a run at the end."""
        return replace(self, waiting=(*self.waiting, run_id))

    def start_next(self) -> Queue:
        """The oldest waiting run runs; nothing may run before."""
        return Queue(self.waiting[0], self.waiting[1:])

    def cancel(self, run_id: str) -> Queue:
        """Take a waiting run out."""
        return replace(self, waiting=tuple(other for other in self.waiting if other != run_id))

    def finish(self, status: RunStatus, *, stop_on_error: bool) -> tuple[Queue, tuple[str, ...]]:
        """The running run is over. Returns the queue, and the runs to abort."""
        if status is RunStatus.OK or not stop_on_error:
            return Queue(None, self.waiting), ()
        return Queue(), self.waiting

    def clear(self) -> tuple[Queue, tuple[str, ...]]:
        """Nothing runs, nothing waits; returns what waited."""
        return Queue(), self.waiting
