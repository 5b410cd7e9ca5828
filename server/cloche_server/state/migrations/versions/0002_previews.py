"""Previews."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "previews",
        sa.Column("sandbox_id", sa.String(20), primary_key=True),
        sa.Column("port", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("visibility", sa.String(16), nullable=False),
        sa.Column("secret", sa.String(64), nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("expires_us", sa.BigInteger),
    )


def downgrade() -> None:
    op.drop_table("previews")
