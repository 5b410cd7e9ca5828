"""``bench fork``: how long the source of a fork stands still, and when its children answer from the live kernel.

The pause is seen from inside, too: a thread of the kernel ticks every millisecond and keeps its longest gap. On a busy
machine that gap is longer than the pause; without any fork it is the row "longest gap, no fork".

With ``bare`` every fork of one is followed by one that `runsc` makes alone, see `_bare_runsc`; ratios are to that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from bench._bare_runsc import BareRunsc, Took
from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client, Sandbox

RootfsOf = Callable[[str], Path]

FRAME = """
import numpy, pandas
frame = pandas.DataFrame({{"a": numpy.arange({megabytes} * 131072)}})
total = int(frame["a"].sum())
"""
BARE = """
frame, total = {"a": range(1000)}, 499500
"""
TICKING = """
import threading, time
gap = 0.0
def tick():
    global gap
    last = time.perf_counter()
    while True:
        time.sleep(0.001)
        now = time.perf_counter()
        gap = max(gap, now - last)
        last = now
threading.Thread(target=tick, daemon=True).start()
"""
ALONE: Final = "runsc alone: all three"
ANSWER = 'print(int(sum(frame["a"]) if type(frame) is dict else frame["a"].sum()) == total)'


def measure(
    client: Client, image: str | None, counts: Sequence[int], megabytes: int, n: int, rootfs_of: RootfsOf | None = None
) -> list[Table]:
    """One table for each number of children, ``n`` forks each, of one source with a frame of so many MB; with 0 of them it has
    a kernel that imported nothing. ``rootfs_of``: where an image is by its digest; then `runsc` is measured alone, too."""
    setup = FRAME.format(megabytes=megabytes) if megabytes else BARE
    with Sandbox.create(image, client=client, driver="gvisor") as source:
        source.run(setup + TICKING).raise_for_error()
        bare = nullcontext() if rootfs_of is None else BareRunsc(rootfs_of(source.info.image_digest), setup)
        with bare as alone:
            return [_of_count(source, count, megabytes, n, alone if count == 1 else None) for count in counts]


def _of_count(source: Sandbox, count: int, megabytes: int, n: int, bare: BareRunsc | None) -> Table:
    calm, paused, gap = Samples("longest gap, no fork"), Samples("source paused"), Samples("longest gap, fork")
    fork, first, total = (
        Samples("fork, until all run"),
        Samples("first answer of a child"),
        Samples("fork to last answer"),
    )
    alone = Alone()
    for _ in range(n):
        calm.add_s(_longest_gap(source, lambda: time.sleep(1)))
        begun = time.perf_counter()
        source.run("gap = 0.0").raise_for_error()
        with source.fork(count).raise_for_errors() as children:
            forked = time.perf_counter()
            with ThreadPoolExecutor(count) as pool:
                for seconds in pool.map(_answered, children):
                    first.add_s(seconds)
            total.add_s(time.perf_counter() - begun)
            gap.add_s(float(source.run("print(gap)").raise_for_error().stdout))
            paused.add_s(children.paused_s)
            fork.add_s(forked - begun)
        if bare is not None:
            alone.add(bare.fork())
    what = f"pandas and {megabytes} MB" if megabytes else "nothing imported"
    title = f"fork({count}) of a kernel with {what} on gvisor"
    rows = rows_of([calm, paused, gap, fork, first, total, *alone.samples], ALONE)
    return Table(title, rows, ALONE if bare else None)


class Alone:
    """What `runsc` takes by itself."""

    def __init__(self) -> None:
        self._save, self._create = Samples("runsc alone: checkpoint"), Samples("runsc alone: create")
        self._restore, self._all = Samples("runsc alone: restore, to a byte"), Samples(ALONE)

    @property
    def samples(self) -> Sequence[Samples]:
        return (self._save, self._create, self._restore, self._all)

    def add(self, took: Took) -> None:
        self._save.add_s(took.save)
        self._create.add_s(took.create)
        self._restore.add_s(took.restore)
        self._all.add_s(took.save + took.create + took.restore)


def _longest_gap(source: Sandbox, meanwhile: Callable[[], None]) -> float:
    source.run("gap = 0.0").raise_for_error()
    meanwhile()
    return float(source.run("print(gap)").raise_for_error().stdout)


def _answered(child: Sandbox) -> float:
    """Seconds until the child has computed over what it was born with."""
    begun = time.perf_counter()
    assert child.run(ANSWER).raise_for_error().stdout.strip() == "True"
    return time.perf_counter() - begun
