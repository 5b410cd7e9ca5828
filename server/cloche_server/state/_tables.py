"""The tables as they are now. Every change comes with a migration in ``migrations/versions``; a test compares both.

Times are microseconds since 1970 (``*_us``).
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import JSON, BigInteger, Boolean, Column, Index, Integer, MetaData, String, Table, text

metadata: Final = MetaData()

keys: Final = Table(
    "keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("secret_hash", String(64), nullable=False, unique=True),
    Column("owner", String(64), nullable=False),
    Column("role", String(16), nullable=False),
    Column("label", String(128), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("revoked_us", BigInteger),
)

sandboxes: Final = Table(
    "sandboxes",
    metadata,
    Column("id", String(20), primary_key=True),
    Column("owner", String(64), nullable=False),
    Column("name", String(64)),
    Column("state", String(16), nullable=False),
    Column("image", String(128), nullable=False),
    Column("image_digest", String(128), nullable=False),
    Column("driver", String(32), nullable=False),
    Column("isolation", String(256), nullable=False),
    Column("capabilities", JSON, nullable=False),
    Column("epoch", String(64), nullable=False),
    Column("token_hash", String(64), nullable=False),
    Column("resources", JSON, nullable=False),
    Column("sudo", Boolean, nullable=False),
    Column("env", JSON, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("metadata", JSON, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("started_us", BigInteger),
    Column("ended_us", BigInteger),
    Column("failure", JSON),
)

# Deleted sandboxes stay as rows, so that their ids answer 410, but give their names free.
Index(
    "sandboxes_name",
    sandboxes.c.owner,
    sandboxes.c.name,
    unique=True,
    sqlite_where=text("state != 'deleted'"),
    postgresql_where=text("state != 'deleted'"),
)
Index("sandboxes_newest", sandboxes.c.created_us, sandboxes.c.id)

idempotency: Final = Table(
    "idempotency",
    metadata,
    Column("owner", String(64), primary_key=True),
    Column("key", String(128), primary_key=True),
    Column("body_hash", String(64), nullable=False),
    Column("sandbox_id", String(20), nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

previews: Final = Table(
    "previews",
    metadata,
    Column("sandbox_id", String(20), primary_key=True),
    Column("port", Integer, primary_key=True, autoincrement=False),
    Column("visibility", String(16), nullable=False),
    Column("secret", String(64), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger),
)
