"""Usage of every sandbox: a slow loop reads those that have processes, and the sums are stored with their rows.

A read is a handful of small files of the cgroup (0.3 ms on a busy machine); it is also done when somebody asks and when
a life ends, so what a crash of the server can lose is what happened to the uplinks' counters since the last turn of the
loop. The cgroup's own counters go on, and the time is known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cloche.errors import ClocheError
from cloche.models import SandboxState, Usage
from cloche_server.clock import Clock, now_us, to_datetime
from cloche_server.drivers import Driver
from cloche_server.sandboxes import DriverSet
from cloche_server.state import SandboxRow, SandboxStore
from cloche_server.uplink import UplinkHub
from cloche_server.usage._account import Account, Reading

_LOG: Final = logging.getLogger("cloche.usage")

PERIOD_S: Final = 10.0

FRESH_US: Final = 500_000
"""Lists are content with a reading this old: several people may look at one server."""

MEASURED: Final = (SandboxState.RUNNING, SandboxState.PAUSED, SandboxState.SUSPENDING, SandboxState.STOPPING)
"""While one is being made, resumed or restored, its row does not say yet when its life began."""


class UsageService:
    """`start` it; `close` reads everything once more."""

    def __init__(
        self, store: SandboxStore, hub: UplinkHub, drivers: DriverSet, saved: Path, clock: Clock = now_us
    ) -> None:
        self._store = store
        self._hub = hub
        self._drivers = drivers
        self._saved = saved
        self._clock = clock
        self._accounts: dict[str, Account] = {}
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.create_task(self._read_for_ever())

    async def _read_for_ever(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.read_all()
            except Exception:
                _LOG.exception("usage could not be read")

    async def read_all(self) -> None:
        """Everything that is measured, stored in one go. Gives way after each, so that nobody waits for all."""
        rows = self._store.with_state(*MEASURED)
        over = self._accounts.keys() - {row.id for row in rows}
        for row in rows:
            await self._read(row)
            await asyncio.sleep(0)
        self._store.set_usage({row.id: self._accounts[row.id].to_json() for row in rows if row.id in self._accounts})
        for sandbox_id in over:
            self._accounts.pop(sandbox_id, None)

    async def of(self, row: SandboxRow) -> Usage:
        """Now."""
        if row.state in MEASURED:
            await self._read(row)
        return self._to_model(row)

    async def of_many(self, rows: Sequence[SandboxRow]) -> list[Usage]:
        """As of the last half second."""
        found = []
        for row in rows:
            last = self._account(row).last
            if row.state in MEASURED and (last is None or self._clock() - last.at_us > FRESH_US):
                await self._read(row)
                await asyncio.sleep(0)
            found.append(self._to_model(row))
        return found

    async def end_life(self, row: SandboxRow) -> None:
        """Before its processes are ended, or what is left of them is removed: the last moment at which they can be measured.

        Never fails: that a sandbox ends is more important.
        """
        try:
            await self._read(row)
            account = self._account(row)
            account.close_life()
            self._store.set_usage({row.id: account.to_json()})
        except Exception:
            _LOG.exception("the usage of a life's end is lost", extra={"sandbox_id": row.id})

    async def _read(self, row: SandboxRow) -> None:
        """Nothing when there is nothing to measure (any more)."""
        driver, started_us = self._drivers.get(row.driver), row.started_us
        if driver is None or started_us is None:
            return
        account = self._account(row)
        try:
            reading = await self._reading(driver, row.id)
        except ClocheError:
            return
        account.add(reading, row.epoch, started_us, running=row.state is not SandboxState.PAUSED)

    async def _reading(self, driver: Driver, sandbox_id: str) -> Reading:
        found = await driver.usage(sandbox_id)
        traffic = self._hub.traffic(sandbox_id)
        return Reading(
            at_us=self._clock(),
            cpu_s=found.cpu_seconds,
            memory_bytes=found.memory_bytes,
            memory_peak_bytes=found.memory_peak_bytes,
            processes=found.pids,
            disk_bytes=found.disk_bytes,
            received=traffic.received,
            sent=traffic.sent,
        )

    def _account(self, row: SandboxRow) -> Account:
        """Kept for those that are measured. Rows of the service need not know what was stored beside it."""
        if row.state not in MEASURED:
            return Account(row.usage)
        if row.id not in self._accounts:
            stored = self._store.get(row.id)
            self._accounts[row.id] = Account(stored.usage if stored else {})
        return self._accounts[row.id]

    def _to_model(self, row: SandboxRow) -> Usage:
        account = self._account(row)
        last = account.last if row.state in MEASURED else None
        return Usage(
            sandbox_id=row.id,
            cpu_s=round(account.cpu_s, 3),
            memory_bytes=last.memory_bytes if last else 0,
            memory_peak_bytes=account.memory_peak_bytes,
            memory_mb_s=round(account.memory_mb_s, 3),
            disk_bytes=last.disk_bytes if last else _allocated(self._saved / row.id),
            uplink_received_bytes=account.received,
            uplink_sent_bytes=account.sent,
            processes=last.processes if last else 0,
            running_s=round(account.running_s, 3),
            as_of=to_datetime(last.at_us if last else self._clock()),
        )

    async def close(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        await self.read_all()


def _allocated(directory: Path) -> int:
    """What the files in it take on the disk; they are ours, in one level. 0 when there is none."""
    try:
        return sum(path.lstat().st_blocks * 512 for path in directory.iterdir())
    except FileNotFoundError:
        return 0
