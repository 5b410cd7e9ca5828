"""Volumes at rest, and who has them: a row exists exactly as long as the volume's image is complete."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from sqlalchemy import String, cast, delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from cloche.errors import Conflict
from cloche.models import SandboxState, VolumeAttachment
from cloche_server.state._database import Database
from cloche_server.state._sandboxes import PageToken
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
        try:
            with self._database.transaction() as connection:
                connection.execute(insert(volumes).values(asdict(row)))
        except IntegrityError as error:
            raise name_in_use(row.name) from error

    def get(self, volume_id: str) -> VolumeRow | None:
        query = select(volumes).where(volumes.c.id == volume_id)
        with self._database.transaction() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else VolumeRow(**row._mapping)

    def find(self, owner: str, name: str) -> VolumeRow | None:
        query = select(volumes).where(volumes.c.owner == owner, volumes.c.name == name)
        with self._database.transaction() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else VolumeRow(**row._mapping)

    def ids(self) -> set[str]:
        with self._database.transaction() as connection:
            return set(connection.execute(select(volumes.c.id)).scalars())

    def count(self, owner: str) -> int:
        query = select(func.count()).select_from(volumes).where(volumes.c.owner == owner)
        with self._database.transaction() as connection:
            return connection.execute(query).scalar_one()

    def set_used(self, volume_id: str, used_bytes: int) -> None:
        with self._database.transaction() as connection:
            connection.execute(update(volumes).where(volumes.c.id == volume_id).values(used_bytes=used_bytes))

    def delete(self, volume_id: str) -> None:
        with self._database.transaction() as connection:
            connection.execute(delete(volumes).where(volumes.c.id == volume_id))

    def attachments(self) -> list[Attachment]:
        """Of all volumes to all sandboxes that are not over."""
        column = sandboxes.c
        some = cast(column.volumes, String) != "[]"
        query = select(column.id, column.state, column.volumes).where(some, column.state.not_in(_OVER))
        with self._database.transaction() as connection:
            rows = connection.execute(query).all()
        return [
            Attachment(VolumeAttachment.model_validate(volume).volume, row.id, SandboxState(row.state))
            for row in rows
            for volume in row.volumes
        ]

    def list(self, wanted: VolumeFilter, limit: int, after: PageToken | None) -> tuple[list[VolumeRow], str | None]:
        """Newest first, and the token of the next page."""
        column = volumes.c
        query = select(volumes).order_by(column.created_us.desc(), column.id.desc()).limit(limit + 1)
        if wanted.owner is not None:
            query = query.where(column.owner == wanted.owner)
        for key, value in wanted.labels.items():
            query = query.where(column.labels[key].as_string() == value)
        if after is not None:
            older = column.created_us < after.created_us
            query = query.where(older | ((column.created_us == after.created_us) & (column.id < after.id)))
        with self._database.transaction() as connection:
            rows = [VolumeRow(**row._mapping) for row in connection.execute(query)]
        last = rows[limit - 1] if len(rows) > limit else None
        return rows[:limit], None if last is None else PageToken(last.created_us, last.id).encode()


def name_in_use(name: str) -> Conflict:
    return Conflict(
        f"a volume named {name!r} exists already",
        hint="choose another name, or delete that volume first",
        details={"kind": "volume", "name": name},
    )
