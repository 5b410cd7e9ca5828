"""Which host user ids a `runc` sandbox's user namespace maps to: 65536 ids of its own, none shared, none real.

A range is a *slot*. Owning one is a symlink ``<ids>/<slot> -> <sandbox id>``: making it is atomic, its target says who
owns it, and a killed server's slots are found again by reading the links. Distinct ranges mean that a process that got
out of one sandbox is nobody in every other, and that per-user kernel limits (keys, inotify) are per sandbox.
"""

from __future__ import annotations

import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Final

IDS_PER_SANDBOX: Final = 65_536
"""Every id a file in an image can have (nobody is 65534)."""

FIRST_ID: Final = 0x7000_0000
"""Above the range systemd gives to containers (up to 0x6FFFFFFF) and far from people, /etc/subuid and homed."""

SLOTS: Final = 4094
"""As many as fit below 2**31 - 1: tools exist that keep a uid in a signed int."""


def first_id(slot: int) -> int:
    """The host id that root of this slot's sandbox is."""
    return FIRST_ID + slot * IDS_PER_SANDBOX


def take_slot(directory: Path, sandbox_id: str) -> int:
    """The slot of this sandbox, taken now if it has none. `LookupError` when all are in use."""
    directory.mkdir(parents=True, exist_ok=True)
    start = zlib.crc32(sandbox_id.encode()) % SLOTS
    for slot in ((start + step) % SLOTS for step in range(SLOTS)):
        with suppress(FileExistsError):
            os.symlink(sandbox_id, directory / str(slot))
            return slot
        if _owner(directory / str(slot)) == sandbox_id:
            return slot
    raise LookupError(f"all {SLOTS} ranges of user ids are in use")


def release_slots(directory: Path, sandbox_id: str) -> None:
    """Give back what this sandbox holds; nothing when it holds nothing."""
    if not directory.exists():
        return
    for link in directory.iterdir():
        if _owner(link) == sandbox_id:
            link.unlink(missing_ok=True)


def _owner(link: Path) -> str | None:
    try:
        return os.readlink(link)
    except OSError:
        return None
