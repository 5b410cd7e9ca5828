"""Versions of templates at rest. Deleted ones stay as rows: their numbers are not used again, and answer 410."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Row, insert, select, update

from cloche.errors import InvalidRequest
from cloche.models import Template, TemplateCreate
from cloche_server.clock import to_datetime
from cloche_server.state._database import Database
from cloche_server.state._tables import templates


@dataclass(frozen=True, slots=True)
class TemplateRow:
    """One version as the database has it, but for what its build printed: creates look rows up, and a log is long."""

    owner: str
    name: str
    version: int
    state: str
    spec: TemplateCreate
    spec_digest: str
    created_us: int
    snapshot_id: str | None = None
    failure: str | None = None
    build_us: int | None = None

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.version}"

    def to_model(self) -> Template:
        """Values of the environment may be secrets: they are not read back."""
        return Template(
            name=self.name,
            version=self.version,
            owner=self.owner,
            state=self.state,  # type: ignore[arg-type]
            spec=_without_values(self.spec),
            spec_digest=self.spec_digest,
            snapshot_id=self.snapshot_id,
            created_at=to_datetime(self.created_us),
            build_s=None if self.build_us is None else self.build_us / 1e6,
            failure=self.failure,
        )


_COLUMNS = [column for column in templates.c if not column.name.startswith("log")]


class TemplateStore:
    """Rows of ``templates``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def insert(self, row: TemplateRow) -> None:
        self._database.write(insert(templates).values(**_to_values(row), log="", log_truncated=False))

    def update(self, row: TemplateRow, **changes: Any) -> TemplateRow:
        """Writes the changed columns; returns the row as it is now."""
        changed = replace(row, **changes)
        values = {name: value for name, value in _to_values(changed).items() if name in changes}
        self._database.write(update(templates).where(_same(row)).values(values))
        return changed

    def write_log(self, row: TemplateRow, text: str, truncated: bool) -> None:
        self._database.write(update(templates).where(_same(row)).values(log=text, log_truncated=truncated))

    def log(self, row: TemplateRow) -> tuple[str, bool]:
        """What was written last, and whether something is missing in its middle."""
        with self._database.transaction() as connection:
            found = connection.execute(select(templates.c.log, templates.c.log_truncated).where(_same(row))).one()
        return found.log, found.log_truncated

    def get(self, owner: str, name: str, version: int) -> TemplateRow | None:
        column = templates.c
        query = select(*_COLUMNS).where(column.owner == owner, column.name == name, column.version == version)
        row = self._database.first(query)
        return None if row is None else _from_row(row)

    def versions(self, owner: str, name: str) -> list[TemplateRow]:
        """All that ever were, oldest first."""
        query = select(*_COLUMNS).where(templates.c.owner == owner, templates.c.name == name)
        return [_from_row(row) for row in self._database.all(query.order_by(templates.c.version))]

    def with_state(self, state: str) -> list[TemplateRow]:
        return [_from_row(row) for row in self._database.all(select(*_COLUMNS).where(templates.c.state == state))]

    def list(
        self, owner: str | None, limit: int, page: str | None, name: str | None = None
    ) -> tuple[list[TemplateRow], str | None]:
        """By name, newest version first, without the deleted ones; and the token of the next page. None: all."""
        column = templates.c
        order = (column.owner, column.name, column.version.desc())
        query = select(*_COLUMNS).where(column.state != "deleted").order_by(*order)
        if owner is not None:
            query = query.where(column.owner == owner)
        if name is not None:
            query = query.where(column.name == name)
        rows = [_from_row(row) for row in self._database.all(query.offset(_offset(page)).limit(limit + 1))]
        return rows[:limit], str(_offset(page) + limit) if len(rows) > limit else None


def _without_values(spec: TemplateCreate) -> TemplateCreate:
    """Every environment in it, with names alone."""

    def blank(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: dict.fromkeys(v or {}, "") if k == "env" else blank(v) for k, v in value.items()}
        return [blank(item) for item in value] if isinstance(value, list) else value

    return TemplateCreate.model_validate(blank(spec.model_dump(mode="json")))


def _offset(page: str | None) -> int:
    """Pages of templates are counted: there are few, and an order by name has no better place to go on from.
    `InvalidRequest` for what is no token of ours."""
    if page is None:
        return 0
    if not (page.isascii() and page.isdecimal() and len(page) < 10):
        raise InvalidRequest("page is not a page token of this list", hint="pass next_page unchanged")
    return int(page)


def _same(row: TemplateRow) -> Any:
    column = templates.c
    return (column.owner == row.owner) & (column.name == row.name) & (column.version == row.version)


def _to_values(row: TemplateRow) -> dict[str, Any]:
    return {**asdict(row), "spec": row.spec.model_dump(mode="json")}


def _from_row(row: Row[Any]) -> TemplateRow:
    values = dict(row._mapping)
    return TemplateRow(**{**values, "spec": TemplateCreate.model_validate(values["spec"])})
