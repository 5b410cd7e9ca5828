"""One pool as this process of the server has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from cloche.models import Pool, PoolStats
from cloche_server.clock import to_datetime
from cloche_server.pools.parked import Stock
from cloche_server.pools.recipe import Recipe, create_of
from cloche_server.pools.sizing import Demand, Intents, Refills, target
from cloche_server.state import PoolRow

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
"""Between fills that fail: a full disk or a broken image is looked at once a minute."""


@dataclass(slots=True, eq=False)
class LivePool:
    """``recipe`` is by which it is filled now; None: there is nothing it could be filled from."""

    row: PoolRow
    recipe: Recipe | None = None
    stock: Stock = field(default_factory=Stock)
    demand: Demand = field(default_factory=Demand)
    refills: Refills = field(default_factory=Refills)
    intents: Intents = field(default_factory=Intents)
    filling: int = 0
    claims: int = 0
    misses: int = 0
    broken: int = 0
    failures: int = 0
    """Fills that failed, since the last that did not."""
    not_before: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        return self.row.owner, self.row.name

    @property
    def size(self) -> int:
        """Sandboxes it has, ready or on their way."""
        return len(self.stock) + self.filling

    def target(self, now: float, room: int) -> int:
        """``room``: sandboxes the server may have more than those that are not this pool's."""
        if self.recipe is None:
            return 0
        rate = self.demand.rate(now)
        return target(self.row.min, self.row.max, rate, self.refills.typical_s, self.intents.count(now), room)

    def lacking(self, now: float, room: int) -> int:
        """Fills to start now; 0 while it pauses after a failure."""
        if now < self.not_before:
            return 0
        return max(0, self.target(now, room) - self.size)

    def failed(self, now: float) -> float:
        """A fill failed. Returns the pause, in seconds."""
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(self.failures, 10))
        self.failures += 1
        self.not_before = now + pause
        return pause

    def filled(self, seconds: float) -> None:
        self.failures, self.not_before = 0, 0.0
        self.refills.last.append(seconds)

    def to_model(self, now: float, room: int) -> Pool:
        row = self.row
        stats = PoolStats(
            ready=len(self.stock),
            filling=self.filling,
            target=self.target(now, room),
            claims=self.claims,
            misses=self.misses,
            broken=self.broken,
            refill_s=self.refills.typical_s,
        )
        return Pool(
            **{name: getattr(row, name) for name in _SHOWN},
            **_of_image(row),
            stats=stats,
            created_at=to_datetime(row.created_us),
        )


_SHOWN: Final = ("name", "owner", "template", "image", "min", "max", "max_age_s", "shared")


def _of_image(row: PoolRow) -> dict[str, Any]:
    """What a template would say; nothing for one of a template."""
    if row.template is not None:
        return {}
    wanted = create_of(row)
    return {name: getattr(wanted, name) for name in ("driver", "resources", "sudo")}
