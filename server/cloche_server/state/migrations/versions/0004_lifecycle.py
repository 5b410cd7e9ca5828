"""Lifecycle, snapshots, volumes, templates and pools."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("sandboxes") as table:
        table.add_column(sa.Column("lifecycle", sa.JSON, nullable=False, server_default="{}"))
        table.add_column(sa.Column("origin", sa.JSON, nullable=False, server_default="{}"))
        table.add_column(sa.Column("parent", sa.String(32)))
        table.add_column(sa.Column("volumes", sa.JSON, nullable=False, server_default="[]"))
        table.add_column(sa.Column("active_us", sa.BigInteger, nullable=False, server_default="0"))
        table.add_column(sa.Column("born_us", sa.BigInteger, nullable=False, server_default="0"))
        table.add_column(sa.Column("saved_us", sa.BigInteger))
        table.add_column(sa.Column("previous", sa.JSON))
        table.add_column(sa.Column("pool", sa.String(64)))
        table.add_column(sa.Column("usage", sa.JSON, nullable=False, server_default="{}"))
    op.execute("UPDATE sandboxes SET active_us = created_us, born_us = created_us")
    with op.batch_alter_table("sandboxes") as table:
        for name in ("lifecycle", "origin", "volumes", "active_us", "born_us", "usage"):
            table.alter_column(name, server_default=None)
    op.create_index("sandboxes_state", "sandboxes", ["state"])
    op.create_table(
        "snapshots",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64)),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("sandbox_id", sa.String(20)),
        sa.Column("parent", sa.String(32)),
        sa.Column("memory", sa.Boolean, nullable=False),
        sa.Column("driver", sa.String(32), nullable=False),
        sa.Column("image", sa.String(128), nullable=False),
        sa.Column("image_digest", sa.String(128), nullable=False),
        sa.Column("resources", sa.JSON, nullable=False),
        sa.Column("sudo", sa.Boolean, nullable=False),
        sa.Column("env", sa.JSON, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("volumes", sa.JSON, nullable=False),
        sa.Column("identity", sa.JSON, nullable=False),
        sa.Column("files", sa.JSON, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.String(64)),
        sa.Column("paused_us", sa.BigInteger, nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("expires_us", sa.BigInteger),
        sa.Column("template", sa.String(80)),
    )
    op.create_index(
        "snapshots_name",
        "snapshots",
        ["owner", "name"],
        unique=True,
        sqlite_where=sa.text("state != 'deleted'"),
        postgresql_where=sa.text("state != 'deleted'"),
    )
    op.create_index("snapshots_sandbox", "snapshots", ["sandbox_id"])
    op.create_table(
        "volumes",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("size_mb", sa.Integer, nullable=False),
        sa.Column("used_bytes", sa.BigInteger, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
    )
    op.create_index("volumes_name", "volumes", ["owner", "name"], unique=True)
    op.create_table(
        "templates",
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("spec_digest", sa.String(64), nullable=False),
        sa.Column("snapshot_id", sa.String(32)),
        sa.Column("failure", sa.String(4096)),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("build_us", sa.BigInteger),
        sa.Column("log", sa.Text, nullable=False),
        sa.Column("log_truncated", sa.Boolean, nullable=False),
    )
    op.create_table(
        "pools",
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("template", sa.String(80)),
        sa.Column("image", sa.String(128)),
        sa.Column("min", sa.Integer, nullable=False),
        sa.Column("max", sa.Integer, nullable=False),
        sa.Column("max_age_s", sa.Integer, nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_index("sandboxes_state", "sandboxes")
    for name in ("pools", "templates", "volumes", "snapshots"):
        op.drop_table(name)
    with op.batch_alter_table("sandboxes") as table:
        for name in (
            *("usage", "pool", "previous", "saved_us", "born_us"),
            *("active_us", "volumes", "parent", "origin", "lifecycle"),
        ):
            table.drop_column(name)
