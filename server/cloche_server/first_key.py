"""The first admin key: made at the first start and written to a file that only this user can read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cloche.models import KeyCreate, Role
from cloche_server.auth import new_secret
from cloche_server.state import KeyStore

FIRST_OWNER: Final = "admin"


def ensure_first_key(keys: KeyStore, path: Path) -> bool:
    """True when one was made. The file is written first: a crash in between leaves a useless file, not a lost key."""
    if keys.count() > 0:
        return False
    secret = new_secret()
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
    keys.create(KeyCreate(owner=FIRST_OWNER, role=Role.ADMIN, label="made at the first start"), secret)
    return True
