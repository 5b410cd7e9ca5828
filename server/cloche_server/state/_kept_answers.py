"""What calls with an idempotency key have made. Kept for a day, which is longer than any client tries again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Executable, delete, insert, select

from cloche_server.clock import Clock, now_us
from cloche_server.state._database import Database
from cloche_server.state._tables import kept_answers

KEPT_US: Final = 24 * 3600 * 1_000_000

Operation = Literal["create", "snapshot", "fork"]

Made = dict[str, Any]
"""What an operation needs to answer again: ``{"id": ...}`` of the sandbox or snapshot; of a fork, its children."""


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """``body_hash`` tells a repeated request from another one under the same key."""

    body_hash: str
    made: Made


class KeptAnswers:
    """Rows of ``kept_answers``: keys of one owner and one operation."""

    def __init__(self, database: Database, clock: Clock = now_us) -> None:
        self._database = database
        self._clock = clock

    def find(self, owner: str, operation: Operation, key: str) -> KeptAnswer | None:
        row = self._database.first(select(kept_answers).where(_same(owner, operation, key)))
        if row is None or row.created_us < self._clock() - KEPT_US:
            return None
        return KeptAnswer(row.body_hash, row.made)

    def record(self, owner: str, operation: Operation, key: str, answer: KeptAnswer) -> None:
        """In place of an older one; drops all that are too old."""
        self._database.write(*recording(owner, operation, key, answer, self._clock()))

    def forget(self, owner: str, operation: Operation, key: str) -> None:
        """After a call that failed: the next try starts afresh."""
        self._database.write(delete(kept_answers).where(_same(owner, operation, key)))


def recording(
    owner: str, operation: Operation, key: str, answer: KeptAnswer, now: int
) -> tuple[Executable, Executable]:
    """What `KeptAnswers.record` does, for a transaction with more in it."""
    old = kept_answers.c.created_us < now - KEPT_US
    values = {"owner": owner, "operation": operation, "key": key, "body_hash": answer.body_hash}
    return (
        delete(kept_answers).where(_same(owner, operation, key) | old),
        insert(kept_answers).values(**values, made=answer.made, created_us=now),
    )


def _same(owner: str, operation: Operation, key: str) -> Any:
    column = kept_answers.c
    return (column.owner == owner) & (column.operation == operation) & (column.key == key)
