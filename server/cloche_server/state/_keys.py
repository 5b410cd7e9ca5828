"""Keys at rest. A look-up goes through a small cache that a revocation in this process empties at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Row, func, insert, select, update

from cloche.errors import NotFound
from cloche.models import Key, KeyCreate, Page, Role
from cloche_server.auth import Principal, hash_secret
from cloche_server.clock import Clock, now_us, to_datetime
from cloche_server.ids import new_key_id
from cloche_server.state._database import Database
from cloche_server.state._pages import PageToken, read_page
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
        row = self._database.first(select(keys).where(keys.c.secret_hash == secret_hash, keys.c.revoked_us.is_(None)))
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
        row = self._database.first(select(keys).where(keys.c.id == key_id, keys.c.revoked_us.is_(None)))
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
        self._database.write(insert(keys).values(values))
        return self.get(str(values["id"]))

    def get(self, key_id: str) -> Key:
        row = self._database.first(select(keys).where(keys.c.id == key_id))
        if row is None:
            raise NotFound(f"there is no key {key_id}", details={"kind": "key", "id": key_id})
        return _to_model(row)

    def count(self) -> int:
        return self._database.count(select(func.count()).select_from(keys))

    def list(self, limit: int, page: str | None) -> Page[Key]:
        """Newest first."""
        after = None if page is None else PageToken.decode(page)
        items, next_page = read_page(self._database, select(keys), keys, limit, after, _to_model)
        return Page[Key](items=items, next_page=next_page)

    def revoke(self, key_id: str) -> Key:
        """Idempotent: the first time counts."""
        self._database.write(
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
