"""What a server that is killed leaves behind, at each of the moments of one operation.

`CrashPoints.watch` copies, whenever something lasting changes, what would be found after a ``kill -9`` there: the data
directory, and what the driver has. `CrashPoints.after` is then a new server over one of these copies.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloche_server.drivers import SandboxSpec

from .conftest import Harness, harness
from .fake_driver import FakeDriver


@dataclass(frozen=True)
class Point:
    """One moment: ``where``, for messages; ``hellos`` are what the living guests say."""

    where: str
    data: Path
    specs: dict[str, SandboxSpec]
    hellos: dict[str, dict[str, object]]
    paused: frozenset[str]


@dataclass
class CrashPoints:
    """``directory`` is where the servers run, ``copies`` where the copies go."""

    directory: Path
    copies: Path
    capabilities: frozenset[str]
    points: list[Point] = field(default_factory=list)

    def watch(self, cloche: Harness) -> None:
        service, driver = cloche.server.services.sandboxes, cloche.driver
        self._copy("before everything", driver)
        for owner, name in (
            *((service.store, "update"), (service.store, "set_token_hash")),
            *((service.saved, "remove"), (service.hub, "remove")),
        ):
            self._around(owner, name, driver)
        for name in ("checkpoint", "start", "destroy", "pause", "resume"):
            self._around_async(driver, name)

    def _around(self, owner: Any, name: str, driver: FakeDriver) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            self._copy(f"after {name}", driver)
            return result

        setattr(owner, name, watched)

    def _around_async(self, driver: FakeDriver, name: str) -> None:
        real: Callable[..., Awaitable[Any]] = getattr(driver, name)

        async def watched(*args: Any, **kwargs: Any) -> Any:
            result = await real(*args, **kwargs)
            self._copy(f"after {name}", driver)
            return result

        setattr(driver, name, watched)

    def _copy(self, where: str, driver: FakeDriver) -> None:
        target = self.copies / str(len(self.points))
        shutil.copytree(self.directory / "data", target)
        hellos = {sandbox_id: copy.deepcopy(guest.hello) for sandbox_id, guest in driver.guests.items()}
        self.points.append(Point(where, target, dict(driver.specs), hellos, frozenset(driver.paused)))

    @asynccontextmanager
    async def after(self, point: Point) -> AsyncIterator[Harness]:
        shutil.rmtree(self.directory / "data")
        shutil.copytree(point.data, self.directory / "data")
        driver = FakeDriver(capabilities=self.capabilities)
        for sandbox_id, spec in point.specs.items():
            spec.uplink_directory.mkdir(parents=True, exist_ok=True)
            driver.take_over(spec, point.hellos.get(sandbox_id))
        driver.paused = set(point.paused)
        async with harness(self.directory, driver) as cloche:
            yield cloche
            for guest in list(driver.guests.values()):
                await guest.close()
