"""Secret keys of this server, each in a file that is made when it is first needed."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

KEY_BYTES: Final = 32
"""Of HMAC-SHA256: more would be hashed down to it."""

UNFINISHED: Final = ".tmp"


def load_key(path: Path) -> bytes:
    """The key in this file. It is made (0600) when it is missing, or has another length: an empty file would be a key that
    everybody knows. On the disk before it is used, so that a power failure does not replace it."""
    with suppress(FileNotFoundError):
        key = path.read_bytes()
        if len(key) == KEY_BYTES:
            return key
    key = secrets.token_bytes(KEY_BYTES)
    _write(path, key)
    return key


def _write(path: Path, key: bytes) -> None:
    unfinished = path.with_name(path.name + UNFINISHED)
    unfinished.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(unfinished, flags, 0o600), "wb") as file:
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
