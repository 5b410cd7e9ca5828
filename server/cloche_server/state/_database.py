"""The database file: opened, brought up to date, closed.

Statements here are primary-key look-ups and single-row writes, all well under a millisecond, so they run on the event
loop's thread; nothing else would be gained by a thread but a queue. ``synchronous=NORMAL`` in WAL mode survives a kill
-9 of the server without an fsync for each commit; a power cut may lose the last commits, but it ends the sandboxes too.

The file holds the environment of sandboxes in clear text (it is needed again when a guest dials): mode 0600.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, Executable, Row, create_engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from cloche.errors import StorageFull

_MIGRATIONS: Final = Path(__file__).parent / "migrations"


class Database:
    """Owns the engine. Close it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, path: Path) -> Database:
        """Creates the file (0600) when it is missing and runs every migration it has not seen."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        engine = create_engine(
            f"sqlite:///{path}", poolclass=StaticPool, connect_args={"check_same_thread": False, "timeout": 5}
        )
        event.listen(engine, "connect", _set_pragmas)
        with engine.begin() as connection:
            migrate(connection)
        return cls(engine)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Commits at the end, rolls back on an exception. Never await inside: there is one connection.

        `StorageFull` when the disk takes no more.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except OperationalError as error:
            if getattr(error.orig, "sqlite_errorcode", None) != sqlite3.SQLITE_FULL:
                raise
            raise StorageFull("the server's disk is full", hint="its operator has to free space") from error

    def first(self, query: Executable, values: Mapping[str, Any] | None = None) -> Row[Any] | None:
        """The only row, if there is one."""
        with self.transaction() as connection:
            return connection.execute(query, values).one_or_none()

    def all(self, query: Executable) -> Sequence[Row[Any]]:
        with self.transaction() as connection:
            return connection.execute(query).all()

    def count(self, query: Executable) -> int:
        """The number that ``query`` selects."""
        with self.transaction() as connection:
            return int(connection.execute(query).scalar_one())

    def write(self, *statements: Executable) -> None:
        """All or none of them."""
        with self.transaction() as connection:
            for statement in statements:
                connection.execute(statement)

    def close(self) -> None:
        self._engine.dispose()


def migrate(connection: Connection, revision: str = "head") -> None:
    """Alembic, without an ini file."""
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _set_pragmas(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    cursor: Any = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
