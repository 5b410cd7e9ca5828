"""What calls with an idempotency key have made, for those whose answer is more than one sandbox: snapshots and forks.

Kept as long as those of creates (`cloche_server.state._idempotency`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import delete, insert, select

from cloche_server.clock import Clock, now_us
from cloche_server.state._database import Database
from cloche_server.state._idempotency import KEPT_US
from cloche_server.state._tables import kept_answers

Operation = Literal["snapshot", "fork"]


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """``made`` is what its operation needs to answer again."""

    body_hash: str
    made: dict[str, Any]


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
        now = self._clock()
        old = kept_answers.c.created_us < now - KEPT_US
        values = {"owner": owner, "operation": operation, "key": key, "body_hash": answer.body_hash}
        self._database.write(
            delete(kept_answers).where(_same(owner, operation, key) | old),
            insert(kept_answers).values(**values, made=answer.made, created_us=now),
        )

    def forget(self, owner: str, operation: Operation, key: str) -> None:
        """After a call that failed: the next try starts afresh."""
        self._database.write(delete(kept_answers).where(_same(owner, operation, key)))


def _same(owner: str, operation: Operation, key: str) -> Any:
    column = kept_answers.c
    return (column.owner == owner) & (column.operation == operation) & (column.key == key)
