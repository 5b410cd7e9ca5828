"""``bench create``: from asking for a sandbox to the result of its first cell, cold."""

from __future__ import annotations

import time

from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client, Sandbox


def measure(client: Client, image: str | None, driver: str, code: str, n: int) -> Table:
    """One driver's table. Each sandbox is deleted before the next is made."""
    created, first, total, deleted = (
        Samples("create"), Samples("first cell"), Samples("create to first result"), Samples("delete"),
    )  # fmt: skip
    for _ in range(n):
        started = time.perf_counter()
        sandbox = Sandbox.create(image, client=client, driver=driver)
        running = time.perf_counter()
        sandbox.run(code).raise_for_error()
        done = time.perf_counter()
        sandbox.delete()
        created.add_s(running - started)
        first.add_s(done - running)
        total.add_s(done - started)
        deleted.add_s(time.perf_counter() - done)
    return Table(f"a new sandbox on {driver}, {code!r}", rows_of([created, first, total, deleted]))
