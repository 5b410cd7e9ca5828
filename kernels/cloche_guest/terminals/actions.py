"""What a session asks its edge to do, in this order."""

from __future__ import annotations

from dataclasses import dataclass

from cloche_guest.terminals.log import Dimensions

Key = int
"""One connection, named by the edge."""


@dataclass(frozen=True, slots=True)
class WriteInput:
    """Write to the PTY; tell `TerminalSession.written` afterwards."""

    client: str
    data: bytes


@dataclass(frozen=True, slots=True)
class SetSize:
    """Give the PTY this size."""

    size: Dimensions


@dataclass(frozen=True, slots=True)
class Repaint:
    """Make a full-screen program draw anew: one row less for a moment. (Ctrl-L would be typed into the program.)"""

    size: Dimensions


@dataclass(frozen=True, slots=True)
class Close:
    """End this connection, after what `pull` still has for it."""

    key: Key
    code: int
    reason: str


Action = WriteInput | SetSize | Repaint | Close
