"""Keys at rest. A look-up goes through a small cache that a revocation in this process empties at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Row, func, insert, select, update

from cloche.errors import InvalidRequest, NotFound
from cloche.models import Key, KeyCreate, Page, Role
from cloche_server.auth import Principal, hash_secret
from cloche_server.clock import Clock, now_us, to_datetime
from cloche_server.ids import new_key_id
from cloche_server.state._database import Database
from cloche_server.state._tables import keys

CACHE_S: Final = 2.0
"""Another server process on the same database learns of a revocation after this long at most."""

MAX_CACHED: Final = 1024


class KeyStore:
    """Rows of ``keys``."""

    def __init__(
        self, database: Database, clock: Clock = now_us, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._clock = clock
        self._monotonic = monotonic
        self._cache: dict[str, tuple[float, Principal]] = {}

    def find(self, secret: str) -> Principal | None:
        """None for an unknown or a revoked key. The look-up is by hash: its time tells nothing about the secret."""
        secret_hash = hash_secret(secret)
        cached = self._cache.get(secret_hash)
        if cached is not None and cached[0] > self._monotonic():
            return cached[1]
        with self._database.transaction() as connection:
            row = connection.execute(
                select(keys).where(keys.c.secret_hash == secret_hash, keys.c.revoked_us.is_(None))
            ).one_or_none()
        if row is None:
            self._cache.pop(secret_hash, None)
            return None
        principal = Principal(key_id=row.id, owner=row.owner, role=Role(row.role))
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        self._cache[secret_hash] = (self._monotonic() + CACHE_S, principal)
        return principal

    def principal(self, key_id: str) -> Principal | None:
        """Who the key with this id belongs to; None for an unknown or a revoked one."""
        with self._database.transaction() as connection:
            row = connection.execute(select(keys).where(keys.c.id == key_id, keys.c.revoked_us.is_(None))).one_or_none()
        return None if row is None else Principal(key_id=row.id, owner=row.owner, role=Role(row.role))

    def create(self, wanted: KeyCreate, secret: str) -> Key:
        values = {
            "id": new_key_id(),
            "secret_hash": hash_secret(secret),
            "owner": wanted.owner,
            "role": wanted.role.value,
            "label": wanted.label,
            "created_us": self._clock(),
            "revoked_us": None,
        }
        with self._database.transaction() as connection:
            connection.execute(insert(keys).values(values))
        return self.get(str(values["id"]))

    def get(self, key_id: str) -> Key:
        with self._database.transaction() as connection:
            row = connection.execute(select(keys).where(keys.c.id == key_id)).one_or_none()
        if row is None:
            raise NotFound(f"there is no key {key_id}", details={"kind": "key", "id": key_id})
        return _to_model(row)

    def count(self) -> int:
        with self._database.transaction() as connection:
            return connection.execute(select(func.count()).select_from(keys)).scalar_one()

    def list(self, limit: int, page: str | None) -> Page[Key]:
        """Newest first. ``page`` is the id of the last key of the page before."""
        query = select(keys).order_by(keys.c.created_us.desc(), keys.c.id.desc()).limit(limit + 1)
        with self._database.transaction() as connection:
            if page is not None:
                last = connection.execute(select(keys).where(keys.c.id == page)).one_or_none()
                if last is None:
                    raise InvalidRequest("page is not a page token of this list")
                query = query.where(
                    (keys.c.created_us < last.created_us)
                    | ((keys.c.created_us == last.created_us) & (keys.c.id < last.id))
                )
            rows = connection.execute(query).all()
        items = [_to_model(row) for row in rows[:limit]]
        return Page[Key](items=items, next_page=items[-1].id if len(rows) > limit else None)

    def revoke(self, key_id: str) -> Key:
        """Idempotent: the first time counts."""
        with self._database.transaction() as connection:
            connection.execute(
                update(keys).where(keys.c.id == key_id, keys.c.revoked_us.is_(None)).values(revoked_us=self._clock())
            )
        self._cache.clear()
        return self.get(key_id)


def _to_model(row: Row[Any]) -> Key:
    return Key(
        id=row.id,
        owner=row.owner,
        role=Role(row.role),
        label=row.label,
        created_at=to_datetime(row.created_us),
        revoked_at=None if row.revoked_us is None else to_datetime(row.revoked_us),
    )
