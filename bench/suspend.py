"""``bench suspend``: a sandbox goes to disk with its memory, and the next call wakes it."""

from __future__ import annotations

import time

from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client, Sandbox

FILLED = """
import numpy, pandas
frame = pandas.DataFrame({{"a": numpy.arange({megabytes} * 131072)}})
total = int(frame["a"].sum())
"""
ANSWER = 'print(int(frame["a"].sum()) == total)'


def measure(client: Client, image: str | None, megabytes: int, n: int) -> tuple[Table, int]:
    """The table, and the bytes on disk of the sandbox while it is suspended."""
    suspend, paused, wake, call = (
        Samples("suspend"), Samples("of that, standing still"), Samples("resume"), Samples("a call that wakes it"),
    )  # fmt: skip
    disk = 0
    with Sandbox.create(image, client=client, driver="gvisor") as sandbox:
        sandbox.run(FILLED.format(megabytes=megabytes)).raise_for_error()
        for turn in range(2 * n):
            change = sandbox.suspend()
            suspend.add_s(change.duration_s)
            paused.add_s(change.paused_s or 0)
            disk = max(disk, sandbox.usage().disk_bytes)
            begun = time.perf_counter()
            if turn % 2:
                sandbox.resume()
                wake.add_s(time.perf_counter() - begun)
            assert sandbox.run(ANSWER).raise_for_error().stdout.strip() == "True"
            if not turn % 2:
                call.add_s(time.perf_counter() - begun)
    return Table(f"a sandbox with pandas and {megabytes} MB on gvisor", rows_of([suspend, paused, wake, call])), disk
