"""Alembic's entry: migrations run on the connection `cloche_server.state` hands over, never on their own."""

from __future__ import annotations

from alembic import context

from cloche_server.state._tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters tables only by copying them
)
with context.begin_transaction():
    context.run_migrations()
