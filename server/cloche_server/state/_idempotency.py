"""Which sandbox an idempotency key made. Records are kept for a day, which is longer than any client tries again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import delete, insert, select

from cloche_server.clock import Clock, now_us
from cloche_server.state._database import Database
from cloche_server.state._tables import idempotency

KEPT_US: Final = 24 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class IdempotencyRow:
    """``body_hash`` tells a repeated request from another one under the same key."""

    body_hash: str
    sandbox_id: str


class IdempotencyStore:
    """Rows of ``idempotency``."""

    def __init__(self, database: Database, clock: Clock = now_us) -> None:
        self._database = database
        self._clock = clock

    def find(self, owner: str, key: str) -> IdempotencyRow | None:
        query = select(idempotency).where(idempotency.c.owner == owner, idempotency.c.key == key)
        row = self._database.first(query)
        if row is None or row.created_us < self._clock() - KEPT_US:
            return None
        return IdempotencyRow(row.body_hash, row.sandbox_id)

    def record(self, owner: str, key: str, made: IdempotencyRow) -> None:
        """Replaces an older record of the key; drops all that are too old."""
        now = self._clock()
        same = (idempotency.c.owner == owner) & (idempotency.c.key == key)
        values = {"owner": owner, "key": key, "body_hash": made.body_hash, "sandbox_id": made.sandbox_id}
        self._database.write(
            delete(idempotency).where(same | (idempotency.c.created_us < now - KEPT_US)),
            insert(idempotency).values(**values, created_us=now),
        )

    def forget(self, sandbox_id: str) -> None:
        """After a create that failed: the next try with the same key starts afresh."""
        self._database.write(delete(idempotency).where(idempotency.c.sandbox_id == sandbox_id))
