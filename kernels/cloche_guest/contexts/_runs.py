"""The runs a context keeps: all that are not finished, and the newest finished ones within two bounds."""

from __future__ import annotations

import secrets
import string
from collections import OrderedDict

from cloche.errors import Gone, NotFound
from cloche_guest.contexts._run import MIB, RunRecord
from cloche_guest.latest_ids import LatestIds

MAX_FINISHED = 100
MAX_FINISHED_BYTES = 64 * MIB
MAX_REMEMBERED = 20_000
"""Ids of dropped runs, so that they are `Gone` and never run twice; some 2 MB."""

_ID_CHARACTERS = string.ascii_lowercase + string.digits


def new_id(prefix: str) -> str:
    """``run-`` or ``ctx-`` and 12 characters (62 bits)."""
    return prefix + "".join(secrets.choice(_ID_CHARACTERS) for _ in range(12))


class Runs:
    """By id, oldest first."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, RunRecord] = OrderedDict()
        self._finished: OrderedDict[str, int] = OrderedDict()
        self._finished_bytes = 0
        self._dropped = LatestIds(MAX_REMEMBERED)

    def add(self, run: RunRecord) -> None:
        """A new run."""
        self._runs[run.id] = run

    def find(self, run_id: str) -> RunRecord | None:
        """
        Raises:
            Gone: it was dropped by the bounds.
        """
        if run_id in self._dropped:
            raise Gone(
                f"run {run_id} was dropped: a context keeps its newest {MAX_FINISHED} finished runs,"
                f" at most {MAX_FINISHED_BYTES // MIB} MiB of them",
                details={"kind": "run", "id": run_id, "limit": MAX_FINISHED, "limit_bytes": MAX_FINISHED_BYTES},
            )
        return self._runs.get(run_id)

    def find_kept(self, run_id: str) -> RunRecord | None:
        """None when it was dropped, too."""
        return self._runs.get(run_id)

    def get(self, run_id: str) -> RunRecord:
        """
        Raises:
            Gone, NotFound
        """
        run = self.find(run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id} in this context", details={"kind": "run", "id": run_id})
        return run

    def all(self) -> list[RunRecord]:
        """Oldest first."""
        return list(self._runs.values())

    def has_finished(self, run: RunRecord) -> None:
        """Count a finished run, and drop the oldest beyond the bounds."""
        size = run.feed.journal.stored_bytes
        self._finished[run.id] = size
        self._finished_bytes += size
        while len(self._finished) > MAX_FINISHED or (
            self._finished_bytes > MAX_FINISHED_BYTES and len(self._finished) > 1
        ):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        run_id, size = self._finished.popitem(last=False)
        self._finished_bytes -= size
        del self._runs[run_id]
        self._dropped.add(run_id)
