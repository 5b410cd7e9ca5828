"""Claimed sandboxes whose guests were not told yet."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("sandboxes") as table:
        table.add_column(sa.Column("known_as", sa.JSON))


def downgrade() -> None:
    with op.batch_alter_table("sandboxes") as table:
        table.drop_column("known_as")
