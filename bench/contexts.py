"""``bench contexts``: from asking for a new context to the result of its first cell."""

from __future__ import annotations

import time

from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client, Sandbox


def measure(client: Client, image: str | None, driver: str, code: str, n: int) -> Table:
    """One driver's table. Each context is deleted before the next is made."""
    created, first, total = Samples("create"), Samples("first cell"), Samples("create to first result")
    with Sandbox.create(image, client=client, driver=driver) as sandbox:
        sandbox.run("pass")
        for _ in range(n):
            started = time.perf_counter()
            context = sandbox.contexts.create()
            running = time.perf_counter()
            context.run(code).raise_for_error()
            done = time.perf_counter()
            context.delete()
            created.add_s(running - started)
            first.add_s(done - running)
            total.add_s(done - started)
    return Table(f"a new context on {driver}, {code!r}", rows_of([created, first, total]))
