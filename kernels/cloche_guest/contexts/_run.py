"""One run: its body, its state, its journal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from pydantic import JsonValue

from cloche.journal import Gap, Journal, split_text
from cloche.journal_feed import JournalFeed
from cloche.models import (
    Failure,
    InputRequest,
    Run,
    RunCreate,
    RunError,
    RunState,
    RunStatus,
    RunSummary,
    TruncatedOutput,
)
from cloche.outputs import Update, collapse
from cloche_guest.contexts._router import MAX_RECORD_BYTES, Shown, encode, encode_shown
from cloche_guest.events import to_event
from cloche_guest.identity import new_epoch

MIB: Final = 1024 * 1024
MAX_BYTES: Final = 8 * MIB
HEAD_BYTES: Final = 1 * MIB
KEPT_BYTES: Final = 2 * MAX_RECORD_BYTES


class RunRecord:
    """A run from its creation on. Only its context changes it."""

    def __init__(self, run_id: str, context_id: str, body: RunCreate) -> None:
        self.id = run_id
        self.body = body
        self.state = RunState.QUEUED
        self.status: RunStatus | None = None
        self.generation = 0
        self.execution_count: int | None = None
        self.error: RunError | None = None
        self.failure: Failure | None = None
        self.kernel_restarted = False
        self.input_request: InputRequest | None = None
        self.created_at = datetime.now(UTC)
        self.started_at: datetime | None = None
        self.finished_at: datetime | None = None
        self.duration_s: float | None = None
        self.finished = asyncio.Event()
        self.feed = JournalFeed(Journal(new_epoch(), max_bytes=MAX_BYTES, head_bytes=HEAD_BYTES, kept_bytes=KEPT_BYTES))
        self._context_id = context_id
        self._updates: dict[str, Update] = {}

    def start(self, generation: int) -> None:
        """It runs from now on."""
        self.state = RunState.RUNNING
        self.generation = generation
        self.started_at = datetime.now(UTC)

    def begin(self, execution_count: int) -> None:
        """The kernel executes its code."""
        self.execution_count = execution_count
        self.note("started", {"execution_count": execution_count, "generation": self.generation})

    def ask(self, request: InputRequest) -> None:
        """It waits for a line."""
        self.input_request = request
        self.note("input_request", request.model_dump())

    def note(self, kind: str, data: Mapping[str, JsonValue]) -> None:
        """Append an event of ours; it is kept whatever floods the journal."""
        self.feed.append(kind, encode(dict(data)), keep=True)

    def add_text(self, stream: str, text: str) -> None:
        """Append stream output, as plain text."""
        self.feed.append(stream, text.encode("utf-8", "replace"), split=split_text)

    def add_shown(self, shown: Shown) -> None:
        """Append a display, a result, an update or a clear."""
        self.feed.append(shown.kind, encode_shown(shown.data), keep=True)

    def add_error(self, error: RunError) -> None:
        """Append what the code raised."""
        self.error = error
        self.note("error", error.model_dump(mode="json"))

    def update_display(self, display_id: str, update: Update) -> None:
        """A later run changes a display of this one; the journal has ended, the outputs have not."""
        self._updates[display_id] = update

    def finish(self, status: RunStatus, failure: Failure | None, duration_s: float | None) -> None:
        """The end: the last event, and nothing after it."""
        self.state, self.status, self.failure = RunState.FINISHED, status, failure
        self.finished_at, self.duration_s = datetime.now(UTC), duration_s
        self.input_request = None
        self.note(
            "finished",
            {
                "status": status.value,
                "failure": failure.model_dump(mode="json") if failure else None,
                "kernel_restarted": self.kernel_restarted,
                "duration_s": duration_s,
            },
        )
        self.feed.close()
        self.finished.set()

    def is_same(self, body: RunCreate) -> bool:
        """A repeated request for this run."""
        return self.body.model_copy(update={"id": None}) == body.model_copy(update={"id": None})

    def to_model(self) -> Run:
        """What the run has produced so far."""
        journal = self.feed.journal
        records = list(journal.read(journal.start, max_records=1_000_000, max_bytes=1024 * MIB))
        gaps = [record for record in records if isinstance(record, Gap)]
        events = (to_event(record, text_records="utf8") for record in records)
        return Run(
            id=self.id,
            context_id=self._context_id,
            generation=self.generation,
            state=self.state,
            status=self.status,
            code=self.body.code,
            execution_count=self.execution_count,
            outputs=collapse(events, self._updates),
            error=self.error,
            failure=self.failure,
            kernel_restarted=self.kernel_restarted,
            input_request=self.input_request,
            truncated=_sum(gaps),
            created_at=self.created_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
            duration_s=self.duration_s,
            cursor=str(journal.head),
        )

    def to_summary(self) -> RunSummary:
        """For lists."""
        return RunSummary(
            id=self.id,
            state=self.state,
            status=self.status,
            execution_count=self.execution_count,
            created_at=self.created_at,
            started_at=self.started_at,
            finished_at=self.finished_at,
        )


def _sum(gaps: list[Gap]) -> TruncatedOutput | None:
    if not gaps:
        return None
    return TruncatedOutput(records=sum(gap.records for gap in gaps), bytes=sum(gap.bytes for gap in gaps))
