"""Which sandboxes and snapshots on this machine need an image. For the command line, which works without a server.

Two witnesses, since each misses something: the server's database (sandboxes that are suspended or stopped, and snapshots,
too) and the kernel's mounts (sandboxes of a driver that runs without a server). A server over PostgreSQL is asked over its
API instead.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from cloche_server.images.store import ImageStore, InUse

_QUERIES: Final = (
    "SELECT id FROM sandboxes WHERE image_digest = ? AND state != 'deleted' ORDER BY id",
    "SELECT id FROM snapshots WHERE image_digest = ? AND state != 'deleted' ORDER BY id",
)


def sandboxes_over(store: ImageStore, mounts: Path = Path("/proc/self/mountinfo")) -> InUse:
    """An `InUse`: ids of sandboxes and snapshots in the database beside the store, and mount points over the tree."""

    def users(digest: str) -> Sequence[str]:
        return [*_recorded(store.root.parent / "cloche.db", digest), *_mounted(store, digest, mounts)]

    return users


def _recorded(database: Path, digest: str) -> Sequence[str]:
    if not database.is_file():
        return ()
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return [found for query in _QUERIES for found in _asked(connection, query, digest)]


def _asked(connection: sqlite3.Connection, query: str, digest: str) -> Sequence[str]:
    try:
        return [str(row[0]) for row in connection.execute(query, (digest,))]
    except sqlite3.OperationalError as error:
        # Only a server that has not made its tables yet: anything else must not read as "nobody uses it".
        if "no such table" in str(error):
            return ()
        raise


def _mounted(store: ImageStore, digest: str, mounts: Path) -> Sequence[str]:
    tree = str(store.root / digest.removeprefix("sha256:"))
    return [line.split()[4] for line in mounts.read_text().splitlines() if tree in line]
