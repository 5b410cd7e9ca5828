"""The ready sandboxes of one pool, and which of them is handed out next. Pure.

One that is awake goes first, then the oldest, so that none grows old as long as creates come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cloche_server.pools.recipe import Recipe


@dataclass(slots=True)
class Parked:
    """One ready sandbox; ``since`` and ``checked`` are monotonic seconds."""

    sandbox_id: str
    recipe: Recipe
    since: float
    checked: float
    frozen: bool = False


class Stock:
    """Ready ones by id. A sandbox is in it only while nobody has taken it."""

    def __init__(self) -> None:
        self._ready: dict[str, Parked] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._ready

    @property
    def awake(self) -> int:
        """Those that do not stand still."""
        return sum(1 for one in self._ready.values() if not one.frozen)

    def oldest_frozen(self) -> Parked | None:
        frozen = (one for one in self._ready.values() if one.frozen)
        return min(frozen, key=lambda one: one.since, default=None)

    def put(self, parked: Parked) -> None:
        self._ready[parked.sandbox_id] = parked

    def discard(self, sandbox_id: str) -> Parked | None:
        return self._ready.pop(sandbox_id, None)

    def best(self, recipe: Recipe, now: float, max_age_s: float) -> list[Parked]:
        """Those that may be handed out, in that order."""
        good = (one for one in self._ready.values() if one.recipe == recipe and now - one.since < max_age_s)
        return sorted(good, key=lambda one: (one.frozen, one.since))

    def unwanted(self, recipe: Recipe | None, now: float, max_age_s: float, wanted: int) -> list[Parked]:
        """To be removed: of another recipe, too old, or more than are wanted (the oldest of those)."""
        bad = [one for one in self._ready.values() if one.recipe != recipe or now - one.since >= max_age_s]
        good = sorted(set(self._ready) - {one.sandbox_id for one in bad}, key=lambda key: self._ready[key].since)
        surplus = good[: max(0, len(good) - wanted)]
        return bad + [self._ready[key] for key in surplus]

    def due(self, now: float, every_s: float) -> Parked | None:
        """The one that is awake and whose last health check is longest ago, when that is longer than ``every_s``."""
        awake = (one for one in self._ready.values() if not one.frozen)
        first = min(awake, key=lambda one: one.checked, default=None)
        return first if first is not None and now - first.checked >= every_s else None

    def all(self) -> Iterable[Parked]:
        return list(self._ready.values())
