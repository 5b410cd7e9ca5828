"""First tables: keys, sandboxes, idempotency."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "keys",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("secret_hash", sa.String(64), nullable=False, unique=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("label", sa.String(128), nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("revoked_us", sa.BigInteger),
    )
    op.create_table(
        "sandboxes",
        sa.Column("id", sa.String(20), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("image", sa.String(128), nullable=False),
        sa.Column("image_digest", sa.String(128), nullable=False),
        sa.Column("driver", sa.String(32), nullable=False),
        sa.Column("isolation", sa.String(256), nullable=False),
        sa.Column("capabilities", sa.JSON, nullable=False),
        sa.Column("epoch", sa.String(64), nullable=False),
        sa.Column("token_hash", sa.String(64), nullable=False),
        sa.Column("resources", sa.JSON, nullable=False),
        sa.Column("sudo", sa.Boolean, nullable=False),
        sa.Column("env", sa.JSON, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("metadata", sa.JSON, nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("started_us", sa.BigInteger),
        sa.Column("ended_us", sa.BigInteger),
        sa.Column("failure", sa.JSON),
    )
    not_deleted = sa.text("state != 'deleted'")
    op.create_index(
        "sandboxes_name",
        "sandboxes",
        ["owner", "name"],
        unique=True,
        sqlite_where=not_deleted,
        postgresql_where=not_deleted,
    )
    op.create_index("sandboxes_newest", "sandboxes", ["created_us", "id"])
    op.create_table(
        "idempotency",
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("body_hash", sa.String(64), nullable=False),
        sa.Column("sandbox_id", sa.String(20), nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    for table in ("idempotency", "sandboxes", "keys"):
        op.drop_table(table)
