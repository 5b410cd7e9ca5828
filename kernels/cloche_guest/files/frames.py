"""What guest and worker say to each other on the connection of one operation. Pure; standard library only.

A frame is a kind (one byte), a length (four bytes, big-endian) and so many bytes. The guest sends JSON with the operation,
then, for operations that take a body, data and an end. The worker sends JSON with a result or an error; for operations that
give a body, data and an end, or an error in place of the end. Who closes early gives up.
"""

from __future__ import annotations

import struct
from typing import Final

JSON: Final = b"J"
DATA: Final = b"D"
END: Final = b"E"

HEADER: Final = struct.Struct(">cI")
MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""A list of 10,000 entries with long names is below it."""

CHUNK: Final = 256 * 1024


def encode(kind: bytes, payload: bytes = b"") -> bytes:
    """One frame."""
    return HEADER.pack(kind, len(payload)) + payload
