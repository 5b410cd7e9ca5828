"""Frames of the terminal protocol ``term.v1``. Pure; shared by client and guest, and by the browser through
`tests/vectors/terminal`.

A binary WebSocket message is one frame: one type byte, an offset of eight bytes (big-endian), the payload.

| type | from | offset counts | payload |
|---|---|---|---|
| 1 OUTPUT | guest | all bytes the terminal ever put out | bytes of the terminal |
| 2 PREAMBLE | guest | same; it consumes none | bytes that bring a fresh terminal into the modes in force at the offset |
| 3 INPUT | client | all bytes this client ever typed | bytes for the terminal |

Text messages are JSON objects, see `cloche.models.terminals`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

SUBPROTOCOL: Final = "term.v1"

MAX_OFFSET: Final = 2**53 - 1
"""The largest integer that JavaScript counts exactly; at 1 GB/s that takes 104 days."""

_HEADER: Final = struct.Struct(">BQ")
HEADER_BYTES: Final = _HEADER.size


class FrameType(IntEnum):
    """The first byte of a frame."""

    OUTPUT = 1
    PREAMBLE = 2
    INPUT = 3


class FrameError(ValueError):
    """Bytes that are no frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One binary message."""

    type: FrameType
    offset: int
    payload: bytes


def encode_frame(kind: FrameType, offset: int, payload: bytes) -> bytes:
    """The bytes of one frame."""
    return _HEADER.pack(kind, offset) + payload


def decode_frame(data: bytes) -> Frame:
    """
    Raises:
        FrameError: too short, of an unknown type, or with an offset no stream reaches.
    """
    if len(data) < HEADER_BYTES:
        raise FrameError(f"a frame has at least {HEADER_BYTES} bytes, not {len(data)}")
    kind, offset = _HEADER.unpack_from(data)
    if kind not in FrameType.__members__.values():
        raise FrameError(f"there is no frame type {kind}")
    if offset > MAX_OFFSET:
        raise FrameError(f"the offset {offset} is over {MAX_OFFSET}")
    return Frame(FrameType(kind), offset, data[HEADER_BYTES:])
