"""The time a sandbox has lived: a clock that stands still while the sandbox does.

A sandbox is frozen, saved and restored hours later, perhaps as a copy; the monotonic clock inside goes on meanwhile
(gVisor sets it forward at a restore, the freezer of Linux does not stop it). Time limits of runs and processes must not
be over because of that. Nobody tells the guest beforehand, so it looks at its own clock every `TICK_S`: when a look
comes much too late, nothing here ran.

Whoever reads the clock looks, too: after a jump a message may be read before any timer runs. And the tick is a timer that
is due before any other that a jump makes due; timers of one turn of the loop run in the order of their times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from cloche_guest.pulse import PERIOD_S, until_pulse

TICK_S: Final = PERIOD_S

JUMP_S: Final = 1.0
"""Later than this is a jump. A guest that was only starved of CPU for so long forgives the time as well: no harm."""

Clock = Callable[[], float]
"""Seconds of a clock that only goes forward."""


class Stills:
    """How long the sandbox stood still in all. Pure."""

    def __init__(self, now: float) -> None:
        self.total_s = 0.0
        self._seen = now

    def look(self, now: float) -> None:
        """Every `TICK_S` or sooner, with the time of a monotonic clock."""
        late_s = now - self._seen - TICK_S
        if late_s > JUMP_S:
            self.total_s += late_s
        self._seen = now


class LifeClock:
    """Call it for the time. Belongs to the running loop; `stop` it at the end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stills = Stills(self._loop.time())
        self._timer = self._look_at_the_next_pulse()

    def __call__(self) -> float:
        now = self._loop.time()
        self._stills.look(now)
        return now - self._stills.total_s

    def stop(self) -> None:
        """No more looks."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._stills.look(self._loop.time())
        self._timer = self._look_at_the_next_pulse()

    def _look_at_the_next_pulse(self) -> asyncio.TimerHandle:
        return self._loop.call_later(until_pulse(self._loop.time()), self._tick)
