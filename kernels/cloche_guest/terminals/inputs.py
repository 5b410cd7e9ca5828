"""What was typed: written once whatever is sent twice. By client, over all of its connections. Pure.

A client counts the bytes of its input. What it sends begins at an offset; what was accepted before is left out, so it may
send anew whatever was not acknowledged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from cloche.models.terminals import INPUT_WINDOW_BYTES

MAX_KNOWN_CLIENTS: Final = 256
"""Clients whose input offset is remembered, the latest ones."""


class InputRefused(Exception):
    """The client broke the protocol; the message says how."""


@dataclass(slots=True)
class _Input:
    accepted: int
    written: int


class Inputs:
    """Offsets of every client that may write."""

    def __init__(self) -> None:
        self._inputs: OrderedDict[str, _Input] = OrderedDict()

    def greet(self, client: str, acknowledged: int, attached: Collection[str]) -> None:
        """A connection of this client begins; it knows of so many bytes that they were acknowledged. ``attached``: clients
        that are not to be forgotten."""
        known = self._inputs.setdefault(client, _Input(acknowledged, acknowledged))
        self._inputs.move_to_end(client)
        if known.accepted < acknowledged:  # by an earlier life that this one does not remember
            known.accepted = known.written = acknowledged
        for name in list(self._inputs)[: max(0, len(self._inputs) - MAX_KNOWN_CLIENTS)]:
            if name not in attached:
                del self._inputs[name]

    def accepted(self, client: str) -> int:
        return self._inputs[client].accepted

    def written(self, client: str) -> int:
        """Bytes that are in the terminal."""
        return self._inputs[client].written

    def accept(self, client: str, offset: int, data: bytes) -> bytes:
        """What of it is new; that counts as accepted from now on.

        Raises:
            InputRefused
        """
        known = self._inputs[client]
        if offset > known.accepted:
            raise InputRefused(f"input at {offset}, expected at most {known.accepted}")
        fresh = data[known.accepted - offset :]
        if known.accepted + len(fresh) - known.written > INPUT_WINDOW_BYTES:
            raise InputRefused(f"more than {INPUT_WINDOW_BYTES} bytes of input without waiting for in_ack")
        known.accepted += len(fresh)
        return fresh

    def has_written(self, client: str, count: int) -> int | None:
        """So many more bytes are in the terminal; returns how many it are now. None: the client is forgotten."""
        known = self._inputs.get(client)
        if known is None:
            return None
        known.written += count
        return known.written
