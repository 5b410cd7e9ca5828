"""Pools at rest, and the one transaction that turns a ready sandbox into somebody's."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Delete, delete, insert, select

from cloche.models import SandboxState
from cloche_server.clock import Clock, now_us
from cloche_server.state._database import Database
from cloche_server.state._kept_answers import KeptAnswer, recording
from cloche_server.state._pages import unique_name
from cloche_server.state._sandboxes import SandboxRow, write_changes
from cloche_server.state._tables import pools, sandboxes


@dataclass(frozen=True, slots=True)
class PoolRow:
    """One pool as the database has it: of a template, or of an image. ``resources`` and ``sudo`` are null in one of a
    template, and in one that an older server has made: then they are the defaults."""

    owner: str
    name: str
    template: str | None
    image: str | None
    min: int
    max: int
    max_age_s: int
    created_us: int
    driver: str | None = None
    resources: dict[str, Any] | None = None
    sudo: bool | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class IdempotencyClaim:
    """Written together with the claim: a crash leaves both or none."""

    key: str
    body_hash: str


class PoolStore:
    """Rows of ``pools``, and the rows of ``sandboxes`` that are parked in one."""

    def __init__(self, database: Database, clock: Clock = now_us) -> None:
        self._database = database
        self._clock = clock

    def put(self, row: PoolRow) -> None:
        """In place of an older one of that name."""
        self._database.write(_delete(row), insert(pools).values(asdict(row)))

    def get(self, owner: str, name: str) -> PoolRow | None:
        query = select(pools).where(pools.c.owner == owner, pools.c.name == name)
        row = self._database.first(query)
        return None if row is None else PoolRow(**row._mapping)

    def all(self) -> list[PoolRow]:
        """By owner and name: there are few."""
        query = select(pools).order_by(pools.c.owner, pools.c.name)
        return [PoolRow(**row._mapping) for row in self._database.all(query)]

    def delete(self, row: PoolRow) -> None:
        self._database.write(_delete(row))

    def forget_ended(self) -> None:
        """At start: rows of parked sandboxes that are no more. Nobody ever saw their ids."""
        ended = [SandboxState.FAILED.value, SandboxState.DELETED.value]
        self._database.write(delete(sandboxes).where(sandboxes.c.pool.is_not(None), sandboxes.c.state.in_(ended)))

    def claim(self, row: SandboxRow, key: IdempotencyClaim | None, **changes: Any) -> SandboxRow:
        """The parked ``row`` becomes the owner's, with what was bound to it. `Conflict` when the name is in use."""
        changed = replace(row, pool=None, **changes)
        with unique_name("sandbox", changed.name), self._database.transaction() as connection:
            write_changes(connection, changed, {"pool", *changes})
            if key is not None:
                answer = KeptAnswer(key.body_hash, {"id": row.id})
                for statement in recording(changed.owner, "create", key.key, answer, self._clock()):
                    connection.execute(statement)
        return changed


def _delete(row: PoolRow) -> Delete:
    return delete(pools).where(pools.c.owner == row.owner, pools.c.name == row.name)
