"""Previews at rest. The secret that signs a preview's tokens is kept as it is: it is needed to check them.

Every request to a preview looks its row up, so rows go through a small cache, which every change in this process empties.
That there is no row is kept, too, so that the time of an answer does not tell whether there is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import delete, insert, select, update

from cloche.models import PreviewVisibility, SandboxState
from cloche_server.state._database import Database
from cloche_server.state._tables import previews, sandboxes

CACHE_S: Final = 2.0
"""Another server process on the same database learns of a change after this long at most; as for keys."""

MAX_CACHED: Final = 1024


@dataclass(frozen=True, slots=True)
class PreviewRow:
    """One preview as the database has it."""

    sandbox_id: str
    port: int
    visibility: PreviewVisibility
    secret: str
    created_us: int
    expires_us: int | None = None


class PreviewStore:
    """Rows of ``previews``."""

    def __init__(self, database: Database, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        self._cache: dict[tuple[str, int], tuple[float, PreviewRow | None]] = {}

    def find(self, sandbox_id: str, port: int) -> PreviewRow | None:
        cached = self._cache.get((sandbox_id, port))
        if cached is not None and cached[0] > self._monotonic():
            return cached[1]
        row = self._read(sandbox_id, port)
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        self._cache[sandbox_id, port] = (self._monotonic() + CACHE_S, row)
        return row

    def _read(self, sandbox_id: str, port: int) -> PreviewRow | None:
        query = select(previews).where(previews.c.sandbox_id == sandbox_id, previews.c.port == port)
        row = self._database.first(query)
        return None if row is None else PreviewRow(**row._mapping)

    def list(self, sandbox_id: str) -> list[PreviewRow]:
        """By port."""
        query = select(previews).where(previews.c.sandbox_id == sandbox_id).order_by(previews.c.port)
        return [PreviewRow(**row._mapping) for row in self._database.all(query)]

    def put(self, row: PreviewRow) -> None:
        """In place of an older one of that port."""
        self._cache.pop((row.sandbox_id, row.port), None)
        self._database.write(delete(previews).where(_same(row)), insert(previews).values(asdict(row)))

    def update(self, row: PreviewRow, **changes: Any) -> None:
        self._cache.pop((row.sandbox_id, row.port), None)
        self._database.write(update(previews).where(_same(row)).values(changes))

    def delete(self, row: PreviewRow) -> None:
        self._cache.pop((row.sandbox_id, row.port), None)
        self._database.write(delete(previews).where(_same(row)))

    def forget_deleted(self) -> None:
        """At start: those of sandboxes that were deleted. Their ids are never used again, so nothing depends on this."""
        deleted = select(sandboxes.c.id).where(sandboxes.c.state == SandboxState.DELETED.value)
        self._database.write(delete(previews).where(previews.c.sandbox_id.in_(deleted)))


def _same(row: PreviewRow) -> Any:
    return (previews.c.sandbox_id == row.sandbox_id) & (previews.c.port == row.port)
