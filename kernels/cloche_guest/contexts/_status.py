"""The state of one context: what it is in, since when it was active, and telling whoever wants to know.

It knows nothing of kernels and runs: the context says what is so, here it is kept, written down and checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from pydantic import JsonValue

from cloche.errors import ContextDead
from cloche.models import ContextState, Failure
from cloche_guest.clock import Clock
from cloche_guest.contexts._context_journal import ContextJournal


class Status:
    """`changed` is set by everything that the task of the context may have to act on; the task clears it.

    `generation` counts kernels, `execution_count` is the kernel's own, `failure` is why the last kernel ended.
    `worked_at`: on the clock of the guest, when something last happened.
    """

    def __init__(
        self,
        context_id: str,
        name: str | None,
        journal: ContextJournal,
        tell: Callable[[str, Mapping[str, JsonValue]], None],
        clock: Clock,
    ) -> None:
        self._context_id = context_id
        self._name = name
        self._journal = journal
        self._tell = tell
        self._clock = clock
        self.state = ContextState.STARTING
        self.failure: Failure | None = None
        self.generation = 0
        self.execution_count = 0
        self.created_at = self.last_activity_at = datetime.now(UTC)
        self.worked_at = clock()
        self.changed = asyncio.Event()

    def become(self, state: ContextState, failure: Failure | None) -> None:
        """It is in this state now; the journals hear of it if it was not before."""
        before = self.state
        self.state, self.failure = state, failure
        if state is before:
            return
        data: dict[str, JsonValue] = {
            "state": state.value,
            "generation": self.generation,
            "failure": _as_json(failure),
        }
        self._journal.note("context_state", data)
        if {before, state} != {ContextState.IDLE, ContextState.BUSY}:  # every run does that
            self._tell("context_state", {"context_id": self._context_id, "name": self._name, **data})
        self.touch()

    def touch(self) -> None:
        """Something happened just now."""
        self.last_activity_at = datetime.now(UTC)
        self.worked_at = self._clock()
        self.changed.set()

    def check_alive(self) -> None:
        """
        Raises:
            ContextDead
        """
        if self.state is ContextState.DEAD:
            why = self.failure.message if self.failure else "its kernel ended"
            details = {"failure": _as_json(self.failure)}
            raise ContextDead(
                f"context {self._context_id} is dead: {why}", hint="restart or delete it", details=details
            )


def _as_json(failure: Failure | None) -> JsonValue:
    return failure.model_dump(mode="json") if failure else None
