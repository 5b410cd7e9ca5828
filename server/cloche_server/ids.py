"""Random names. All come from the system's generator; the lengths are those the models demand."""

from __future__ import annotations

import secrets
import string
from typing import Final

_ALPHABET: Final = string.ascii_lowercase + string.digits


def _letters(count: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(count))


def new_sandbox_id() -> str:
    """20 characters of 36: 103 bits, so an id is never handed out twice."""
    return _letters(20)


def new_key_id() -> str:
    return f"key-{_letters(12)}"


def new_share_id() -> str:
    return f"shr-{_letters(12)}"


def new_snapshot_id() -> str:
    return f"snap-{_letters(12)}"


def new_volume_id() -> str:
    return f"vol-{_letters(12)}"


def new_request_id() -> str:
    return f"req-{secrets.token_hex(8)}"


def new_epoch() -> str:
    """Of one life of a sandbox."""
    return _letters(12)


def new_uplink_token() -> str:
    """256 bits; only the guest and, as a hash, the database have it."""
    return secrets.token_urlsafe(32)


def next_life(epoch: str) -> str:
    """The epoch of a new life with the memory of the one before: `same_memory` holds between both."""
    return f"{memory_line(epoch)}.{_letters(6)}"


def same_memory(one: str, other: str) -> bool:
    """Whether what lived in the memory of one life (contexts, processes, terminals) lives on in the other."""
    return memory_line(one) == memory_line(other)


def memory_line(epoch: str) -> str:
    """What all lives share between which memory went on."""
    return epoch.partition(".")[0]
