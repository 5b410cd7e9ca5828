"""Snapshots at rest: one row for each, also for the deleted ones, whose place in the tree others still need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from sqlalchemy import Row, delete, func, insert, select, update

from cloche.models import Resources, Snapshot, VolumeAttachment
from cloche_server.clock import to_datetime
from cloche_server.state._database import Database
from cloche_server.state._pages import PageToken, matching, read_page, unique_name
from cloche_server.state._tables import snapshots

SnapshotState = Literal["creating", "ready", "broken", "deleted"]


@dataclass(frozen=True, slots=True)
class SavedFile:
    """One file of a snapshot. ``digest``: `cloche_server.snapshots.digest_of_file`."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """One snapshot as the database has it. ``env`` has the values, ``identity`` the hash of the session in it."""

    id: str
    owner: str
    name: str | None
    state: SnapshotState
    sandbox_id: str | None
    parent: str | None
    memory: bool
    driver: str
    image: str
    image_digest: str
    resources: Resources
    sudo: bool
    env: dict[str, str]
    labels: dict[str, str]
    identity: dict[str, str]
    """``sandbox_id``, ``epoch`` and ``session_hash`` of the guest at that moment."""
    created_us: int
    volumes: list[VolumeAttachment] = field(default_factory=list)
    files: Sequence[SavedFile] = ()
    size_bytes: int = 0
    digest: str | None = None
    paused_us: int = 0
    expires_us: int | None = None
    template: str | None = None

    def to_model(self) -> Snapshot:
        return Snapshot.model_validate(
            {
                **{name: getattr(self, name) for name in _SAME_IN_BOTH},
                "paused_s": self.paused_us / 1e6,
                "created_at": to_datetime(self.created_us),
                "expires_at": None if self.expires_us is None else to_datetime(self.expires_us),
            }
        )


_SAME_IN_BOTH = (
    *("id", "name", "owner", "labels", "state", "sandbox_id", "parent", "memory", "driver", "image", "image_digest"),
    *("resources", "volumes", "size_bytes", "digest", "template"),
)


@dataclass(frozen=True, slots=True)
class SnapshotFilter:
    """None or empty: any. Deleted ones are always left out."""

    owner: str | None = None
    sandbox_id: str | None = None
    name: str | None = None
    labels: dict[str, str] = field(default_factory=dict)


class SnapshotStore:
    """Rows of ``snapshots``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def insert(self, row: SnapshotRow) -> None:
        """`Conflict` when the owner has a snapshot of that name."""
        with unique_name("snapshot", row.name):
            self._database.write(insert(snapshots).values(_to_values(row)))

    def update(self, row: SnapshotRow, **changes: Any) -> SnapshotRow:
        """Writes the changed columns; returns the row as it is now."""
        changed = replace(row, **changes)
        values = {name: value for name, value in _to_values(changed).items() if name in changes}
        self._database.write(update(snapshots).where(snapshots.c.id == row.id).values(values))
        return changed

    def write(self, row: SnapshotRow) -> None:
        """All columns."""
        self._database.write(update(snapshots).where(snapshots.c.id == row.id).values(_to_values(row)))

    def remove(self, snapshot_id: str) -> None:
        """Of one that was never ready; one that was keeps its row."""
        self._database.write(delete(snapshots).where(snapshots.c.id == snapshot_id))

    def get(self, snapshot_id: str) -> SnapshotRow | None:
        """Also a deleted one."""
        row = self._database.first(select(snapshots).where(snapshots.c.id == snapshot_id))
        return None if row is None else _from_row(row)

    def count(self, owner: str) -> int:
        """Of those that are there or are being made, without the templates'."""
        column = snapshots.c
        query = select(func.count()).select_from(snapshots)
        query = query.where(column.owner == owner, column.state != "deleted", column.template.is_(None))
        return self._database.count(query)

    def find_by_name(self, owner: str, name: str) -> SnapshotRow | None:
        query = select(snapshots).where(
            snapshots.c.owner == owner, snapshots.c.name == name, snapshots.c.state != "deleted"
        )
        row = self._database.first(query)
        return None if row is None else _from_row(row)

    def with_state(self, *states: SnapshotState) -> list[SnapshotRow]:
        query = select(snapshots).where(snapshots.c.state.in_(states))
        return [_from_row(row) for row in self._database.all(query)]

    def expired(self, now_us: int) -> list[SnapshotRow]:
        """Of those that are there; the ones that are still being made are not."""
        column = snapshots.c
        query = select(snapshots).where(column.state.in_(("ready", "broken")), column.expires_us <= now_us)
        return [_from_row(row) for row in self._database.all(query)]

    def of_sandbox(self, sandbox_id: str) -> list[SnapshotRow]:
        """Oldest first; none that are deleted."""
        column = snapshots.c
        query = select(snapshots).where(column.sandbox_id == sandbox_id, column.state != "deleted")
        return [_from_row(row) for row in self._database.all(query.order_by(column.created_us, column.id))]

    def parents(self, sandbox_id: str) -> dict[str, str | None]:
        """Of every snapshot this sandbox ever had, deleted ones included."""
        query = select(snapshots.c.id, snapshots.c.parent).where(snapshots.c.sandbox_id == sandbox_id)
        return {row.id: row.parent for row in self._database.all(query)}

    def list(self, wanted: SnapshotFilter, limit: int, after: PageToken | None) -> tuple[list[SnapshotRow], str | None]:
        """Newest first, and the token of the next page."""
        query = select(snapshots).where(snapshots.c.state != "deleted")
        equal = {"owner": wanted.owner, "sandbox_id": wanted.sandbox_id, "name": wanted.name}
        query = matching(query, snapshots, wanted.labels, **equal)
        return read_page(self._database, query, snapshots, limit, after, _from_row)


def _to_values(row: SnapshotRow) -> dict[str, Any]:
    values = asdict(row)
    values["resources"] = row.resources.model_dump()
    values["volumes"] = [volume.model_dump() for volume in row.volumes]
    values["files"] = [asdict(file) for file in row.files]
    return values


def _from_row(row: Row[Any]) -> SnapshotRow:
    values = dict(row._mapping)
    values["resources"] = Resources.model_validate(values["resources"])
    values["volumes"] = [VolumeAttachment.model_validate(volume) for volume in values["volumes"]]
    values["files"] = [SavedFile(**file) for file in values["files"]]
    return SnapshotRow(**values)
