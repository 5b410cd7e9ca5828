"""Sandboxes at rest: one row for each, also for the deleted ones, whose ids must answer 410 for ever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, JsonValue
from sqlalchemy import Connection, Row, Select, Update, bindparam, case, delete, func, insert, select, update

from cloche.models import (
    Failure,
    LifecyclePolicy,
    Lifetime,
    Origin,
    Resources,
    Sandbox,
    SandboxState,
    VolumeAttachment,
)
from cloche_server.clock import to_datetime
from cloche_server.lifecycle.policy import planned_us
from cloche_server.state._database import Database
from cloche_server.state._pages import PageToken, matching, read_page, unique_name
from cloche_server.state._tables import sandboxes


@dataclass(frozen=True, slots=True)
class SandboxRow:
    """One sandbox as the database has it. ``env`` has the values; nothing that leaves the server does."""

    id: str
    owner: str
    name: str | None
    state: SandboxState
    image: str
    image_digest: str
    driver: str
    isolation: str
    capabilities: Sequence[str]
    epoch: str
    token_hash: str
    resources: Resources
    sudo: bool
    env: dict[str, str]
    labels: dict[str, str]
    metadata: dict[str, JsonValue]
    created_us: int
    started_us: int | None = None
    ended_us: int | None = None
    failure: Failure | None = None
    lifecycle: LifecyclePolicy = field(default_factory=LifecyclePolicy)
    origin: Origin = field(default_factory=Origin)
    parent: str | None = None
    """The snapshot it was last saved to, made from or rolled back to."""
    volumes: list[VolumeAttachment] = field(default_factory=list)
    active_us: int = 0
    """Last call into it, or work seen in it."""
    born_us: int = 0
    """Create, or claim of a warm one: where ``max_lifetime_s`` begins."""
    saved_us: int | None = None
    """Since when it is suspended or stopped."""
    previous: dict[str, str] | None = None
    """``sandbox_id`` and ``epoch`` its restored guest bears until its first hello."""
    pool: str | None = None
    """Parked there, ready; nobody sees it until it is claimed."""
    usage: dict[str, float] = field(default_factory=dict)
    """Sums over the lives that have ended."""
    known_as: dict[str, Any] | None = None
    """Claimed, and its guest was not told yet: the ``epoch`` and ``env`` that the guest still goes by."""

    @property
    def never_ran(self) -> bool:
        """Its server was stopped while it was made."""
        return self.started_us is None and self.state in (SandboxState.FAILED, SandboxState.DELETED)

    def to_model(self) -> Sandbox:
        return Sandbox.model_validate(
            {
                **{name: getattr(self, name) for name in _SAME_IN_BOTH},
                "capabilities": list(self.capabilities),
                "env": sorted(self.env),
                "created_at": to_datetime(self.created_us),
                "started_at": None if self.started_us is None else to_datetime(self.started_us),
                "last_activity_at": to_datetime(self.active_us),
                "lifetime": _lifetime(self),
            }
        )


def _lifetime(row: SandboxRow) -> Lifetime:
    planned = {why: to_datetime(at_us) for why, at_us in planned_us(row).items()}
    return Lifetime(
        idle_at=planned.get("idle_timeout"),
        ends_at=planned.get("max_lifetime"),
        deletes_at=planned.get("delete_after"),
    )


_SAME_IN_BOTH = (
    *("id", "name", "owner", "state", "image", "image_digest", "driver", "isolation", "epoch"),
    *("resources", "sudo", "labels", "metadata", "failure", "lifecycle", "origin", "parent", "volumes"),
)


@dataclass(frozen=True, slots=True)
class SandboxFilter:
    """None or empty: any. Without a state the deleted ones are left out."""

    owner: str | None = None
    state: SandboxState | None = None
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict)


_ALIVE = set(SandboxState) - {SandboxState.FAILED, SandboxState.DELETED}
_RUNNING = _ALIVE - {SandboxState.SUSPENDED, SandboxState.STOPPED}


@dataclass(frozen=True, slots=True)
class Counts:
    """``alive``: all but the failed and the deleted ones. ``running``: those of them with processes, or about to have
    them. ``of_owner``: alive, and of the owner that was asked for."""

    alive: int
    running: int
    of_owner: int


def _count() -> Select[Any]:
    alive = sandboxes.c.state.in_([state.value for state in _ALIVE])
    running = case((sandboxes.c.state.in_([state.value for state in _RUNNING]), 1), else_=0)
    theirs = case((sandboxes.c.owner == bindparam("of_owner"), 1), else_=0)
    columns = (func.count(), func.coalesce(func.sum(running), 0), func.coalesce(func.sum(theirs), 0))
    return select(*columns).where(alive, sandboxes.c.pool.is_(None))


# Made once: to make a statement and to find that it is one of before takes five times as long as to execute it.
_COUNT: Final = _count()
_BY_ID: Final = select(sandboxes).where(sandboxes.c.id == bindparam("row_id"))


@cache
def _update(names: frozenset[str]) -> Update:
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in names}
    return update(sandboxes).where(sandboxes.c.id == bindparam("row_id")).values(values)


def write_changes(connection: Connection, row: SandboxRow, names: Iterable[str]) -> None:
    """These fields of ``row`` into the database. `IntegrityError` when the name is in use."""
    changed = frozenset(names)
    values = {f"new_{name}": _plain(getattr(row, name)) for name in changed}
    connection.execute(_update(changed), {"row_id": row.id, **values})


class SandboxStore:
    """Rows of ``sandboxes``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def insert(self, row: SandboxRow) -> None:
        """`Conflict` when the owner has a sandbox of that name."""
        with unique_name("sandbox", row.name):
            self._database.write(insert(sandboxes).values(_to_values(row)))

    def set_token_hash(self, sandbox_id: str, token_hash: str) -> None:
        """The only column that changes without the service's doing: at the guest's first hello."""
        self._database.write(update(sandboxes).where(sandboxes.c.id == sandbox_id).values(token_hash=token_hash))

    def set_usage(self, sums: Mapping[str, dict[str, float]]) -> None:
        """By id; beside the service, too, which changes everything else."""
        if sums:
            values = [{"row_id": sandbox_id, "sums": usage} for sandbox_id, usage in sums.items()]
            statement = update(sandboxes).where(sandboxes.c.id == bindparam("row_id")).values(usage=bindparam("sums"))
            with self._database.transaction() as connection:
                connection.execute(statement, values)

    def update(self, row: SandboxRow, **changes: Any) -> SandboxRow:
        """Writes the changed columns; returns the row as it is now. `Conflict` as for `insert`."""
        changed = replace(row, **changes)
        with unique_name("sandbox", changed.name), self._database.transaction() as connection:
            write_changes(connection, changed, changes)
        return changed

    def remove(self, sandbox_id: str) -> None:
        """Of a create that failed; a sandbox that once ran keeps its row."""
        self._database.write(delete(sandboxes).where(sandboxes.c.id == sandbox_id))

    def get(self, sandbox_id: str) -> SandboxRow | None:
        row = self._database.first(_BY_ID, {"row_id": sandbox_id})
        return None if row is None else _from_row(row)

    def find_by_name(self, owner: str, name: str) -> SandboxRow | None:
        query = select(sandboxes).where(
            sandboxes.c.owner == owner, sandboxes.c.name == name, sandboxes.c.state != SandboxState.DELETED.value
        )
        row = self._database.first(query)
        return None if row is None else _from_row(row)

    def count(self, owner: str | None = None) -> Counts:
        """Of all, and of ``owner``; without the parked ones, which are nobody's."""
        with self._database.transaction() as connection:
            return Counts(*connection.execute(_COUNT, {"of_owner": owner}).one())

    def count_by_state(self) -> dict[tuple[str, ...], float]:
        """``(state, driver)`` -> how many; deleted ones do not count."""
        query = (
            select(sandboxes.c.state, sandboxes.c.driver, func.count())
            .where(sandboxes.c.state != SandboxState.DELETED.value)
            .group_by(sandboxes.c.state, sandboxes.c.driver)
        )
        with self._database.transaction() as connection:
            return {(state, driver): count for state, driver, count in connection.execute(query)}

    def all_kept(self) -> list[SandboxRow]:
        """All but the deleted ones."""
        return self.with_state(*(set(SandboxState) - {SandboxState.DELETED}))

    def with_state(self, *states: SandboxState) -> list[SandboxRow]:
        query = select(sandboxes).where(sandboxes.c.state.in_([state.value for state in states]))
        return [_from_row(row) for row in self._database.all(query)]

    def list(self, wanted: SandboxFilter, limit: int, after: PageToken | None) -> tuple[list[SandboxRow], str | None]:
        """Newest first, and the token of the next page. Parked ones are nobody's yet, and left out."""
        column = sandboxes.c
        deleted = SandboxState.DELETED.value
        state = column.state != deleted if wanted.state is None else column.state == wanted.state.value
        query = select(sandboxes).where(column.pool.is_(None), state)
        query = matching(query, sandboxes, wanted.labels, owner=wanted.owner, name=wanted.name)
        return read_page(self._database, query, sandboxes, limit, after, _from_row)


def _to_values(row: SandboxRow) -> dict[str, Any]:
    return {name.name: _plain(getattr(row, name.name)) for name in fields(row)}


def _plain(value: Any) -> Any:
    """As the database takes it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, SandboxState):
        return value.value
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _from_row(row: Row[Any]) -> SandboxRow:
    values = dict(row._mapping)
    values["state"] = SandboxState(values["state"])
    values["resources"] = Resources.model_validate(values["resources"])
    values["failure"] = None if values["failure"] is None else Failure.model_validate(values["failure"])
    values["lifecycle"] = LifecyclePolicy.model_validate(values["lifecycle"])
    values["origin"] = Origin.model_validate(values["origin"])
    values["volumes"] = [VolumeAttachment.model_validate(volume) for volume in values["volumes"]]
    return SandboxRow(**values)
