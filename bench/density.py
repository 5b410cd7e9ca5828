"""``bench density``: what idle sandboxes with a live kernel cost in memory, from what the machine has available."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from bench._api import Api
from bench._pools import pool
from bench._report import Table
from bench._samples import Row
from cloche import Client

SETTLE_S: Final = 5.0
"""For pages that are given back late, and for what started with a sandbox to come to rest."""


def measure(client: Client, image: str | None, driver: str, n: int) -> Table:
    """One driver's table. The first two sandboxes are not counted: they bring what all share into the page cache."""
    api = Api(client)
    try:
        with pool(api, image, driver, 2):
            before = available_mib()
        with pool(api, image, driver, 2 + n):
            # What is counted is n sandboxes: two of these were there before.
            after = available_mib()
    finally:
        api.close()
    each = (before - after) / n
    return Table(
        f"{n} idle sandboxes with a live kernel on {driver}",
        [_row("MiB each", each, n), _row("in one GiB", 1024 / each if each > 0 else float("inf"), n)],
        unit="MiB, and how many",
    )


def available_mib() -> float:
    """MemAvailable, once it stands still."""
    time.sleep(SETTLE_S)
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no MemAvailable in /proc/meminfo")


def _row(name: str, value: float, n: int) -> Row:
    return Row(name, n, value, value, None)
