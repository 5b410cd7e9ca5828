"""One wake-up a second for everything that must look at something now and then.

A wake-up costs an idle sandbox far more than what is done in it (on gVisor some 0.2 ms), so all who look wait for the
same moment. Not for the same as other sandboxes: a hundred of them must not wake at once.
"""

from __future__ import annotations

import math
import random
from typing import Final

PERIOD_S: Final = 1.0

_PHASE_S: Final = random.random() * PERIOD_S


def until_pulse(now: float) -> float:
    """Seconds until the next one, which is never at once; `now` is the event loop's time."""
    beats = (now - _PHASE_S) / PERIOD_S
    return max((math.floor(beats) + 1 - beats) * PERIOD_S, 0.001)
