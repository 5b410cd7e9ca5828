"""Patience: how long a client goes on trying to reach a server it has lost, and how often it tries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

FIRST_DELAY_S: Final = 0.05
"""A restarted server on the same machine listens again after about a second; the first tries cost nothing."""

LONGEST_DELAY_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Patience:
    """Pauses between tries: 0.05 s, doubled each time up to 2 s, until ``window_s`` seconds of pauses are used up."""

    window_s: float = 30.0
    first_delay_s: float = FIRST_DELAY_S

    def delays(self) -> Iterator[float]:
        """The pauses of one outage."""
        left, delay = self.window_s, self.first_delay_s
        while left > 0:
            yield min(delay, left)
            left -= delay
            delay = min(delay * 2, LONGEST_DELAY_S)
