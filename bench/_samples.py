"""Samples: times of one thing, and what is said of them. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Samples:
    """Milliseconds of one thing that was done again and again."""

    name: str
    ms: list[float] = field(default_factory=list)

    def add_s(self, seconds: float) -> None:
        self.ms.append(seconds * 1000)

    @property
    def median(self) -> float:
        return statistics.median(self.ms)

    @property
    def p95(self) -> float:
        """The smallest value that at least 95 % do not exceed (nearest rank): a time that was really measured."""
        return sorted(self.ms)[math.ceil(0.95 * len(self.ms)) - 1]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table. ``ratio``: median over the baseline's median."""

    name: str
    n: int
    median_ms: float
    p95_ms: float
    ratio: float | None


def rows_of(samples: Sequence[Samples], baseline: str | None = None) -> list[Row]:
    """Rows in the order given; no ratios without a baseline."""
    base = next((one.median for one in samples if one.name == baseline and one.ms), None)
    return [
        Row(one.name, len(one.ms), one.median, one.p95, one.median / base if base else None)
        for one in samples
        if one.ms
    ]
