"""Previews at rest. The secret that signs a preview's tokens is kept as it is: it is needed to check them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import delete, insert, select, update

from cloche.models import PreviewVisibility, SandboxState
from cloche_server.state._database import Database
from cloche_server.state._tables import previews, sandboxes


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

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, sandbox_id: str, port: int) -> PreviewRow | None:
        query = select(previews).where(previews.c.sandbox_id == sandbox_id, previews.c.port == port)
        with self._database.transaction() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else PreviewRow(**row._mapping)

    def list(self, sandbox_id: str) -> list[PreviewRow]:
        """By port."""
        query = select(previews).where(previews.c.sandbox_id == sandbox_id).order_by(previews.c.port)
        with self._database.transaction() as connection:
            return [PreviewRow(**row._mapping) for row in connection.execute(query)]

    def put(self, row: PreviewRow) -> None:
        """In place of an older one of that port."""
        with self._database.transaction() as connection:
            connection.execute(delete(previews).where(_same(row)))
            connection.execute(insert(previews).values(asdict(row)))

    def update(self, row: PreviewRow, **changes: Any) -> None:
        with self._database.transaction() as connection:
            connection.execute(update(previews).where(_same(row)).values(changes))

    def delete(self, row: PreviewRow) -> None:
        with self._database.transaction() as connection:
            connection.execute(delete(previews).where(_same(row)))

    def forget_deleted(self) -> None:
        """At start: those of sandboxes that were deleted. Their ids are never used again, so nothing depends on this."""
        deleted = select(sandboxes.c.id).where(sandboxes.c.state == SandboxState.DELETED.value)
        with self._database.transaction() as connection:
            connection.execute(delete(previews).where(previews.c.sandbox_id.in_(deleted)))


def _same(row: PreviewRow) -> Any:
    return (previews.c.sandbox_id == row.sandbox_id) & (previews.c.port == row.port)
