"""``bench watch``: from a change of a file to the event at an SSE client; and how many changes a second it follows."""

from __future__ import annotations

import queue
import threading
import time

from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client, Sandbox
from cloche._files import FileWatch

_WAIT_S = 30.0


def measure(client: Client, image: str | None, driver: str, n: int, files: int) -> Table:
    """One driver's table. The clock of a sandbox is that of its machine: the change says when it was made."""
    latency, through_api = Samples("change by a program to event"), Samples("write over the API to event")
    burst = Samples(f"{files} files made in new directories, last event")
    with Sandbox.create(image, client=client, driver=driver) as sandbox:
        sandbox.run("import os, time; os.makedirs('w')")
        with sandbox.files.watch("w", coalesce_ms=0) as watch:
            seen: queue.Queue[tuple[str, float]] = queue.Queue()
            thread = threading.Thread(target=_read, args=(watch, seen), daemon=True)
            thread.start()
            for index in range(n):
                made = float(sandbox.run(f"t = time.time(); os.mkdir('w/a{index}'); print(t)").stdout)
                latency.add_s(_when(seen, f"a{index}") - made)
                started = time.time()
                sandbox.files.mkdir(f"w/b{index}")
                through_api.add_s(_when(seen, f"b{index}") - started)
            code = (
                f"for n in range({files}):\n"
                "    if n % 50 == 0: os.makedirs(f'w/{n}/x')\n"
                "    open(f'w/{n // 50 * 50}/x/{n}', 'w').close()\n"
                "os.mkdir('w/end')"
            )
            started = time.time()
            sandbox.run(code).raise_for_error()
            burst.add_s(_when(seen, "end") - started)
    return Table(f"a watch on {driver}", rows_of([latency, through_api, burst]))


def _read(watch: FileWatch, seen: queue.Queue[tuple[str, float]]) -> None:
    for change in watch:
        seen.put((change.path or "", time.time()))


def _when(seen: queue.Queue[tuple[str, float]], path: str) -> float:
    while True:
        name, at = seen.get(timeout=_WAIT_S)
        if name == path:
            return at
