"""What the stores share: pages of a list, newest first, and names that an owner uses once."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Row, Select, Table
from sqlalchemy.exc import IntegrityError

from cloche.errors import Conflict, InvalidRequest
from cloche_server.state._database import Database

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class PageToken:
    """Where the next page of a list begins: behind this row. Opaque on the wire."""

    created_us: int
    id: str

    def encode(self) -> str:
        return base64.urlsafe_b64encode(f"{self.created_us}.{self.id}".encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> PageToken:
        """`InvalidRequest` for anything that is not a token of ours."""
        try:
            raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True).decode(
                "ascii"
            )
            created, _, row_id = raw.partition(".")
        except (ValueError, binascii.Error) as error:
            raise _no_token() from error
        if not (created.isdecimal() and len(created) < 19 and row_id.replace("-", "").isalnum()):
            raise _no_token()
        return cls(int(created), row_id)


def _no_token() -> InvalidRequest:
    return InvalidRequest("page is not a page token of this list", hint="pass next_page of the page before, unchanged")


def matching(query: Select[Any], table: Table, labels: Mapping[str, str], **wanted: str | None) -> Select[Any]:
    """Of ``query`` the rows with all these labels, and with these values of columns (None: any)."""
    for name, value in wanted.items():
        if value is not None:
            query = query.where(table.c[name] == value)
    for key, value in labels.items():
        query = query.where(table.c.labels[key].as_string() == value)
    return query


def read_page(
    database: Database,
    query: Select[Any],
    table: Table,
    limit: int,
    after: PageToken | None,
    made: Callable[[Row[Any]], _Item],
) -> tuple[list[_Item], str | None]:
    """Newest first, and the token of the next page. Rows that come meanwhile never shift a page."""
    column = table.c
    query = query.order_by(column.created_us.desc(), column.id.desc()).limit(limit + 1)
    if after is not None:
        older = column.created_us < after.created_us
        query = query.where(older | ((column.created_us == after.created_us) & (column.id < after.id)))
    rows = database.all(query)
    last = rows[limit - 1] if len(rows) > limit else None
    return [made(row) for row in rows[:limit]], None if last is None else PageToken(last.created_us, last.id).encode()


@contextmanager
def unique_name(kind: str, name: str | None) -> Iterator[None]:
    """Around a write: `Conflict` when the owner has another one of that name."""
    try:
        yield
    except IntegrityError as error:
        raise name_in_use(kind, name) from error


def name_in_use(kind: str, name: str | None) -> Conflict:
    return Conflict(
        f"a {kind} named {name!r} exists already",
        hint=f"choose another name, or delete that {kind} first",
        details={"kind": kind, "name": name},
    )
