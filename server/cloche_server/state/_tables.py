"""The tables as they are now. Every change comes with a migration in ``migrations/versions``; a test compares both.

Times are microseconds since 1970 (``*_us``).
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import JSON, BigInteger, Boolean, Column, Index, Integer, MetaData, String, Table, Text, text

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
    # Of its life
    Column("lifecycle", JSON, nullable=False),
    Column("origin", JSON, nullable=False),
    Column("parent", String(32)),
    Column("volumes", JSON, nullable=False),
    Column("active_us", BigInteger, nullable=False),
    Column("born_us", BigInteger, nullable=False),
    Column("saved_us", BigInteger),
    Column("previous", JSON),
    Column("pool", String(64)),
    Column("usage", JSON, nullable=False),
    Column("known_as", JSON(none_as_null=True)),
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
# Rows of deleted ones are kept for ever; counting the others must not look at them.
Index("sandboxes_state", sandboxes.c.state)

kept_answers: Final = Table(
    "kept_answers",
    metadata,
    Column("owner", String(64), primary_key=True),
    Column("operation", String(16), primary_key=True),
    Column("key", String(128), primary_key=True),
    Column("body_hash", String(64), nullable=False),
    Column("made", JSON, nullable=False),
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

shares: Final = Table(
    "shares",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("sandbox_id", String(20), nullable=False),
    Column("terminal_id", String(20), nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger, nullable=False),
)
Index("shares_of_sandbox", shares.c.sandbox_id)

snapshots: Final = Table(
    "snapshots",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("owner", String(64), nullable=False),
    Column("name", String(64)),
    Column("state", String(16), nullable=False),
    Column("sandbox_id", String(20)),
    Column("parent", String(32)),
    Column("memory", Boolean, nullable=False),
    Column("driver", String(32), nullable=False),
    Column("image", String(128), nullable=False),
    Column("image_digest", String(128), nullable=False),
    Column("resources", JSON, nullable=False),
    Column("sudo", Boolean, nullable=False),
    Column("env", JSON, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("volumes", JSON, nullable=False),
    Column("identity", JSON, nullable=False),
    Column("files", JSON, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("digest", String(64)),
    Column("paused_us", BigInteger, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("expires_us", BigInteger),
    Column("template", String(80)),
)

Index(
    "snapshots_name",
    snapshots.c.owner,
    snapshots.c.name,
    unique=True,
    sqlite_where=text("state != 'deleted'"),
    postgresql_where=text("state != 'deleted'"),
)
Index("snapshots_sandbox", snapshots.c.sandbox_id)

volumes: Final = Table(
    "volumes",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("owner", String(64), nullable=False),
    Column("name", String(64), nullable=False),
    Column("size_mb", Integer, nullable=False),
    Column("used_bytes", BigInteger, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)

Index("volumes_name", volumes.c.owner, volumes.c.name, unique=True)

templates: Final = Table(
    "templates",
    metadata,
    Column("owner", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("state", String(16), nullable=False),
    Column("spec", JSON, nullable=False),
    Column("spec_digest", String(64), nullable=False),
    Column("snapshot_id", String(32)),
    Column("failure", String(4096)),
    Column("created_us", BigInteger, nullable=False),
    Column("build_us", BigInteger),
    Column("log", Text, nullable=False),
    Column("log_truncated", Boolean, nullable=False),
)

pools: Final = Table(
    "pools",
    metadata,
    Column("owner", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("template", String(80)),
    Column("image", String(128)),
    Column("min", Integer, nullable=False),
    Column("max", Integer, nullable=False),
    Column("max_age_s", Integer, nullable=False),
    Column("driver", String(32)),
    Column("resources", JSON),
    Column("sudo", Boolean),
    Column("shared", Boolean, nullable=False),
    Column("created_us", BigInteger, nullable=False),
)
