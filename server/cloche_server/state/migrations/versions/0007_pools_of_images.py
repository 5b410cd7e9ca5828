"""Pools of an image with a driver and resources of their own, and pools for every owner."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("pools") as table:
        table.add_column(sa.Column("driver", sa.String(32)))
        table.add_column(sa.Column("resources", sa.JSON))
        table.add_column(sa.Column("sudo", sa.Boolean))
        table.add_column(sa.Column("shared", sa.Boolean, nullable=False, server_default=sa.false()))
    with op.batch_alter_table("pools") as table:
        table.alter_column("shared", server_default=None)


def downgrade() -> None:
    with op.batch_alter_table("pools") as table:
        for name in ("driver", "resources", "sudo", "shared"):
            table.drop_column(name)
