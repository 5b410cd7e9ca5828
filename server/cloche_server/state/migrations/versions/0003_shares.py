"""Links to terminals, so that one can be revoked alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "shares",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("sandbox_id", sa.String(20), nullable=False),
        sa.Column("terminal_id", sa.String(20), nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("expires_us", sa.BigInteger, nullable=False),
    )
    op.create_index("shares_of_sandbox", "shares", ["sandbox_id"])


def downgrade() -> None:
    op.drop_table("shares")
