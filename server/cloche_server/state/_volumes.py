"""Volumes at rest, and who has them: a row exists exactly as long as the volume's image is complete."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Row, String, cast, delete, func, insert, select, update

from cloche.models import SandboxState, VolumeAttachment
from cloche_server.state._database import Database
from cloche_server.state._pages import PageToken, matching, read_page, unique_name
from cloche_server.state._tables import sandboxes, volumes

_OVER = (SandboxState.FAILED.value, SandboxState.DELETED.value)
"""Sandboxes in these states never run again, whatever their rows say of volumes."""


@dataclass(frozen=True, slots=True)
class VolumeRow:
    """One volume. ``used_bytes`` is what was in it when it was last unmounted."""

    id: str
    owner: str
    name: str
    size_mb: int
    labels: dict[str, str]
    created_us: int
    used_bytes: int = 0


@dataclass(frozen=True, slots=True)
class VolumeFilter:
    """None or empty: any."""

    owner: str | None = None
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A sandbox that has the volume, or will again when it is resumed."""

    volume_id: str
    sandbox_id: str
    state: SandboxState


class VolumeStore:
    """Rows of ``volumes``, and the attachments in those of ``sandboxes``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def insert(self, row: VolumeRow) -> None:
        """`Conflict` when the owner has a volume of that name."""
        with unique_name("volume", row.name):
            self._database.write(insert(volumes).values(asdict(row)))

    def get(self, volume_id: str) -> VolumeRow | None:
        query = select(volumes).where(volumes.c.id == volume_id)
        row = self._database.first(query)
        return None if row is None else _from_row(row)

    def find(self, owner: str, name: str) -> VolumeRow | None:
        query = select(volumes).where(volumes.c.owner == owner, volumes.c.name == name)
        row = self._database.first(query)
        return None if row is None else _from_row(row)

    def ids(self) -> set[str]:
        return {row.id for row in self._database.all(select(volumes.c.id))}

    def count(self, owner: str) -> int:
        query = select(func.count()).select_from(volumes).where(volumes.c.owner == owner)
        return self._database.count(query)

    def set_used(self, volume_id: str, used_bytes: int) -> None:
        self._database.write(update(volumes).where(volumes.c.id == volume_id).values(used_bytes=used_bytes))

    def delete(self, volume_id: str) -> None:
        self._database.write(delete(volumes).where(volumes.c.id == volume_id))

    def attachments(self) -> list[Attachment]:
        """Of all volumes to all sandboxes that are not over."""
        column = sandboxes.c
        some = cast(column.volumes, String) != "[]"
        query = select(column.id, column.state, column.volumes).where(some, column.state.not_in(_OVER))
        return [
            Attachment(VolumeAttachment.model_validate(volume).volume, row.id, SandboxState(row.state))
            for row in self._database.all(query)
            for volume in row.volumes
        ]

    def list(self, wanted: VolumeFilter, limit: int, after: PageToken | None) -> tuple[list[VolumeRow], str | None]:
        """Newest first, and the token of the next page."""
        query = matching(select(volumes), volumes, wanted.labels, owner=wanted.owner)
        return read_page(self._database, query, volumes, limit, after, _from_row)


def _from_row(row: Row[Any]) -> VolumeRow:
    return VolumeRow(**row._mapping)
