"""The runs of one context: which is whose turn, how each ended, and what was executed.

`Queue` has the order and its rules; here the runs themselves follow it, with journal and history. It knows no kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cloche.errors import Conflict, LimitReached
from cloche.models import Failure, HistoryEntry, RunCreate, RunState, RunStatus
from cloche_guest.contexts._context_journal import ContextJournal
from cloche_guest.contexts._history import HistoryLog
from cloche_guest.contexts._queue import MAX_QUEUE, Queue
from cloche_guest.contexts._run import RunRecord
from cloche_guest.contexts._runs import Runs, new_id


class Turns:
    """`touch` is called whenever a run comes or ends."""

    def __init__(self, context_id: str, journal: ContextJournal, touch: Callable[[], None]) -> None:
        self._context_id = context_id
        self._journal = journal
        self._touch = touch
        self._queue = Queue()
        self.runs = Runs()
        self.history = HistoryLog()

    @property
    def run_ids(self) -> list[str]:
        """Of what runs, and of what waits in its order."""
        return self._queue.run_ids

    @property
    def has_waiting(self) -> bool:
        return bool(self._queue.waiting)

    def find_same(self, body: RunCreate) -> RunRecord | None:
        """The run that an earlier request with this id has made.

        Raises:
            Conflict: the id names another run.
            Gone
        """
        known = self.runs.find(body.id) if body.id is not None else None
        if known is not None and not known.is_same(body):
            raise Conflict(f"run {body.id} has another body", details={"kind": "run", "id": body.id})
        return known

    def add(self, body: RunCreate) -> RunRecord:
        """A new run, behind all others.

        Raises:
            LimitReached
        """
        if self._queue.is_full:
            raise LimitReached(f"{MAX_QUEUE} runs wait in {self._context_id} already", details={"limit": MAX_QUEUE})
        run = RunRecord(body.id or new_id("run-"), self._context_id, body)
        self.runs.add(run)
        self._queue = self._queue.add(run.id)
        self._journal.note("queued", {"run_id": run.id})
        self._touch()
        return run

    def start_next(self) -> RunRecord:
        """The oldest one that waits; there is one, and nothing runs."""
        self._queue = self._queue.start_next()
        assert self._queue.running is not None
        return self.runs.get(self._queue.running)

    def cancel(self, run: RunRecord) -> None:
        """Take one out that waits."""
        self._queue = self._queue.cancel(run.id)
        self._abort([run.id], _interrupted("cancelled in the queue"))

    def finish(self, run: RunRecord, status: RunStatus, failure: Failure | None, duration_s: float) -> None:
        """The running one is over; what waits behind it may be aborted with it."""
        self.end(run, status, failure, duration_s)
        self._queue, aborted = self._queue.finish(status, stop_on_error=run.body.stop_on_error)
        self._abort(aborted, _interrupted(f"run {run.id} before it ended as {status.value}"))

    def drop_all(self, failure: Failure | None) -> None:
        """Nothing waits from now on."""
        self._queue, waiting = self._queue.clear()
        self._abort(waiting, failure)

    def end(self, run: RunRecord, status: RunStatus, failure: Failure | None, duration_s: float | None) -> None:
        """How it ended, once; the queue stays as it is."""
        if run.state is RunState.FINISHED:
            return
        run.finish(status, failure, duration_s)
        self.runs.has_finished(run)
        self._journal.note("run_finished", {"run_id": run.id, "status": status.value})
        self._touch()

    def remember(self, run: RunRecord) -> None:
        """Write its code into the history, if the kernel counted it."""
        if run.body.store_history and run.execution_count is not None:
            self.history.add(
                HistoryEntry(
                    generation=run.generation,
                    execution_count=run.execution_count,
                    run_id=run.id,
                    code=run.body.code,
                )
            )

    def _abort(self, run_ids: Iterable[str], failure: Failure | None) -> None:
        for run_id in run_ids:
            self.end(self.runs.get(run_id), RunStatus.ABORTED, failure, None)


def _interrupted(message: str) -> Failure:
    return Failure(reason="interrupted", message=message)
