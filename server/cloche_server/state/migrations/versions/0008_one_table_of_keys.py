"""Idempotency keys of creates are kept as those of forks and snapshots."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_SHARED = ("owner", "key", "body_hash", "created_us")


def upgrade() -> None:
    old = sa.table("idempotency", *(sa.column(name) for name in (*_SHARED, "sandbox_id")))
    rows = [dict(row._mapping) for row in op.get_bind().execute(sa.select(old))]
    op.bulk_insert(
        _kept_answers(), [{**row, "operation": "create", "made": {"id": row.pop("sandbox_id")}} for row in rows]
    )
    op.drop_table("idempotency")


def downgrade() -> None:
    op.create_table(
        "idempotency",
        sa.Column("owner", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(128), primary_key=True),
        sa.Column("body_hash", sa.String(64), nullable=False),
        sa.Column("sandbox_id", sa.String(20), nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
    )
    op.execute(sa.delete(_kept_answers()).where(sa.column("operation") == "create"))


def _kept_answers() -> sa.TableClause:
    columns = (*_SHARED, "operation")
    return sa.table("kept_answers", *(sa.column(name) for name in columns), sa.column("made", sa.JSON))
