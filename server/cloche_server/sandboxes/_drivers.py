"""The drivers of this machine and what their self-tests said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from cloche.errors import DriverUnavailable
from cloche.models import DriverReport
from cloche_server.drivers import Driver, SelfTest, report


class DriverSet:
    """Strongest boundary first. The default is the first that works, or the operator's choice; never another one."""

    def __init__(self, drivers: Sequence[Driver], preferred: str | None = None) -> None:
        self._drivers = {driver.name: driver for driver in drivers}
        self._preferred = preferred
        self._tests: dict[str, SelfTest] = {}

    async def self_test(self) -> None:
        """All at once; each is bounded by itself."""
        results = await asyncio.gather(*(driver.self_test() for driver in self._drivers.values()))
        self._tests = dict(zip(self._drivers, results, strict=True))

    def all(self) -> list[Driver]:
        return list(self._drivers.values())

    def get(self, name: str) -> Driver | None:
        """Also one whose self-test failed: its sandboxes of yesterday must still be found and removed."""
        return self._drivers.get(name)

    @property
    def default_name(self) -> str | None:
        candidates = [self._preferred] if self._preferred else list(self._drivers)
        return next((name for name in candidates if self._works(name)), None)

    def choose(self, name: str | None) -> Driver:
        """The driver asked for, or the default. `DriverUnavailable` says why not, and what to do."""
        wanted = name or self._preferred or self.default_name
        if wanted is None:
            raise self._unavailable("no driver works on this machine", self._why_none())
        if not self._works(wanted):
            test = self._tests.get(wanted)
            why = (test.why_not if test else None) or "it is not part of this server"
            raise self._unavailable(
                f"the driver {wanted} does not work here: {why}", why, test.how_to_fix if test else None
            )
        return self._drivers[wanted]

    def reports(self) -> list[DriverReport]:
        return [report(test) for test in self._tests.values()]

    def _works(self, name: str) -> bool:
        return name in self._tests and self._tests[name].works

    def _why_none(self) -> str:
        return "; ".join(f"{test.driver}: {test.why_not}" for test in self._tests.values()) or "there are no drivers"

    @staticmethod
    def _unavailable(message: str, why: str, how: str | None = None) -> DriverUnavailable:
        return DriverUnavailable(message, hint=how or "run: cloche doctor", details={"why": why})
