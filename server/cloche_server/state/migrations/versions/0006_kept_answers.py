"""What snapshots and forks with an idempotency key have made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "kept_answers",
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("operation", sa.String(16), primary_key=True),
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("body_hash", sa.String(64), nullable=False),
        sa.Column("made", sa.JSON, nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("kept_answers")
