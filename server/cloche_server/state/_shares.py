"""Links to terminals at rest: a link is good as long as its row is there. The token itself is signed, and not kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import delete, func, insert, select

from cloche.models import SandboxState
from cloche_server.state._database import Database
from cloche_server.state._tables import sandboxes, shares


@dataclass(frozen=True, slots=True)
class ShareRow:
    """One link as the database has it."""

    id: str
    sandbox_id: str
    terminal_id: str
    created_us: int
    expires_us: int


class ShareStore:
    """Rows of ``shares``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, row: ShareRow) -> None:
        self._database.write(insert(shares).values(asdict(row)))

    def find(self, share_id: str) -> ShareRow | None:
        query = select(shares).where(shares.c.id == share_id)
        row = self._database.first(query)
        return None if row is None else ShareRow(**row._mapping)

    def list(self, sandbox_id: str, terminal_id: str, now_us: int) -> list[ShareRow]:
        """Those that are not over, oldest first."""
        here = (shares.c.sandbox_id == sandbox_id) & (shares.c.terminal_id == terminal_id)
        query = select(shares).where(here, shares.c.expires_us > now_us).order_by(shares.c.created_us, shares.c.id)
        return [ShareRow(**row._mapping) for row in self._database.all(query)]

    def count(self, sandbox_id: str) -> int:
        query = select(func.count()).where(shares.c.sandbox_id == sandbox_id)
        return self._database.count(query)

    def delete(self, share_id: str) -> None:
        self._database.write(delete(shares).where(shares.c.id == share_id))

    def forget_useless(self, now_us: int) -> None:
        """Those that are over, and those of deleted sandboxes."""
        deleted = select(sandboxes.c.id).where(sandboxes.c.state == SandboxState.DELETED.value)
        useless = (shares.c.expires_us <= now_us) | shares.c.sandbox_id.in_(deleted)
        self._database.write(delete(shares).where(useless))
