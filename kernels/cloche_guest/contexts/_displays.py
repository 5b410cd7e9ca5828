"""Which runs show which display: an update reaches every one of them, in whatever run it is made."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

MAX_DISPLAYS: Final = 1000
"""Display ids remembered; the oldest are forgotten, and their updates change only the run that makes them."""


class Displays:
    """Display id -> runs, in the order they showed it."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, dict[str, None]] = OrderedDict()

    def remember(self, display_id: str, run_id: str) -> None:
        """The run shows this display."""
        self._runs.setdefault(display_id, {})[run_id] = None
        if len(self._runs) > MAX_DISPLAYS:
            self._runs.popitem(last=False)

    def runs_showing(self, display_id: str) -> list[str]:
        """Ids of runs; some may have been dropped since."""
        return list(self._runs.get(display_id, ()))
