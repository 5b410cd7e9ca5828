"""How many ready sandboxes a pool wants to have. Pure: times are seconds of any one monotonic clock, given by the caller.

A pool is a stock that is refilled one by one, so the rule is that of a stock. With ``load`` = arrivals per second x
seconds of one refill, about ``load / (1 - load)`` creates come while refills of earlier ones are under way or wait for
their turn (a queue with random arrivals and one server). Three standard deviations of a Poisson count are added as
headroom, so that fewer than one create in a hundred finds nothing ready while demand stays as it is. At a load of 1 refills
cannot keep up, and the pool wants all that it may have.

Demand is an exponentially decaying average: a pool nobody asks for goes back to its minimum. Intents are added on top:
they are creates that somebody says will come.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final

TIME_CONSTANT_S: Final = 60.0
"""Of the average: long enough to see a rate of one create in a minute, short enough to have forgotten a rush after five."""

FIRST_REFILL_S: Final = 0.5
"""Assumed until one was measured. A restore takes 0.3 s and a cold start with a kernel 1 s on a machine with two cores."""

REFILLS_KEPT: Final = 16

HEADROOM_SIGMAS: Final = 3.0


@dataclass(slots=True)
class Demand:
    """Creates a pool could have served, found ready or not."""

    weight: float = 0.0
    as_of: float = 0.0

    def seen(self, now: float) -> None:
        """One create came."""
        self.weight = self._decayed(now) + 1
        self.as_of = now

    def rate(self, now: float) -> float:
        """Creates per second, averaged over the last minute or so."""
        return self._decayed(now) / TIME_CONSTANT_S

    def _decayed(self, now: float) -> float:
        return self.weight * math.exp(-max(0.0, now - self.as_of) / TIME_CONSTANT_S)


@dataclass(slots=True)
class Refills:
    """How long the last ones took, in seconds."""

    last: deque[float] = field(default_factory=lambda: deque(maxlen=REFILLS_KEPT))

    @property
    def typical_s(self) -> float | None:
        """The median: one refill that met a busy machine says nothing. None before the first."""
        return median(self.last) if self.last else None


@dataclass(slots=True)
class _Open:
    """What is left of one intent."""

    count: int
    until: float


@dataclass(slots=True)
class Intents:
    """Creates announced that have not come yet."""

    _open: list[_Open] = field(default_factory=list)

    def add(self, count: int, until: float) -> None:
        self._open.append(_Open(count, until))

    def met(self, now: float) -> None:
        """A create came: one less is to be expected, of the intent that ends first."""
        self._forget(now)
        if self._open:
            first = min(self._open, key=lambda one: one.until)
            first.count -= 1
            self._forget(now)

    def count(self, now: float) -> int:
        self._forget(now)
        return sum(one.count for one in self._open)

    def _forget(self, now: float) -> None:
        self._open = [one for one in self._open if one.until > now and one.count > 0]


def stock_for(load: float) -> int | None:
    """Ready ones that a load needs; None: no stock is enough."""
    if load >= 1:
        return None
    expected = load / (1 - load)
    return math.ceil(expected + HEADROOM_SIGMAS * math.sqrt(expected) - 1e-9)


def target(least: int, most: int, rate: float, refill_s: float | None, intents: int, room: int) -> int:
    """Ready ones wanted now: never below ``least`` nor above ``most``, and never more than the server has ``room`` for.

    An average below one create in ten minutes counts as none: it is the tail of a rush that is long over.
    """
    rate = 0.0 if rate < 1 / 600 else rate
    wanted = stock_for(rate * (FIRST_REFILL_S if refill_s is None else refill_s))
    demanded = most if wanted is None else wanted + intents
    return max(0, min(max(least, min(most, demanded)), room))
