"""Whether the sandbox does any work. Looking is not work: readers, watches and viewers never count.

What works, and when:

* A context works while a run runs or waits in the queue, while its kernel starts, and while what its kernel has started
  uses CPU. A run that waits for input does not work.
* A process works while it uses CPU, and for `RECENT_S` after it started, wrote or ended. Services never do.
* A terminal works while its programs use CPU, and for `RECENT_S` after it got keys or wrote; but for what it writes
  because its size changed.

"Uses CPU" is `SHARE` of one CPU or more, of the whole tree, between two looks. The first look at a tree only counts as
`RECENT_S` of work. Nothing is looked at unless somebody asks.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cloche.models.guest import Activity
from cloche_guest.clock import Clock
from cloche_guest.contexts import _leftovers
from cloche_guest.contexts._leftovers import ProcessFacts

RECENT_S: Final = 10.0
"""Programs that work in bursts (a build that waits for the network, a loop with pauses) are not idle in between."""

SHARE: Final = 0.02
"""An idle ipykernel takes 0.1 % of a CPU, an idle development server of Node up to 1 %."""

SHORTEST_S: Final = 1.0
"""CPU time comes in ticks of 10 ms: over less than this a share is mostly chance."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A process and what belongs to it: see `_leftovers`."""

    pid: int
    mark: str


@dataclass(frozen=True, slots=True)
class Worker:
    """Something that may work. `works`: it does so now. `worked_at`: when it last did, as far as it knows itself."""

    name: str
    works: bool
    worked_at: float
    tree: Tree | None


class CpuMeter:
    """When each tree last used CPU. Pure: looks come from the caller."""

    def __init__(self) -> None:
        self._looks: dict[Tree, tuple[float, float]] = {}
        self._used_at: dict[Tree, float] = {}

    def look(self, used_s: Mapping[Tree, float], now: float) -> Mapping[Tree, float]:
        """CPU seconds of every tree that is there now; returns when each last worked. Trees that are gone are forgotten."""
        self._used_at = {tree: self._used_at.get(tree, now) for tree in used_s}
        self._looks = {tree: self._looks.get(tree, (now, used)) for tree, used in used_s.items()}
        for tree, used in used_s.items():
            at, before = self._looks[tree]
            if now - at < SHORTEST_S:
                continue
            # The end of a daemon takes its time out of the sum: less than before is work, too.
            if abs(used - before) >= SHARE * (now - at):
                self._used_at[tree] = now
            self._looks[tree] = (now, used)
        return self._used_at


class ActivityMeter:
    """Asks all that may work."""

    def __init__(self, clock: Clock, sources: Sequence[Callable[[], Iterable[Worker]]]) -> None:
        self._clock = clock
        self._sources = sources
        self._cpu = CpuMeter()
        self._worked_at = clock()

    def touch(self) -> None:
        """The sandbox begins a life, or goes on with one: it is not idle since before."""
        self._worked_at = self._clock()

    async def measure(self) -> Activity:
        """Now."""
        workers = [worker for source in self._sources for worker in source()]
        trees = [worker.tree for worker in workers if worker.tree is not None]
        used_s = await asyncio.to_thread(cpu_seconds, trees) if trees else {}
        now = self._clock()
        used_at = self._cpu.look(used_s, now)
        working = [worker.name for worker in workers if worker.works or now - _last(worker, used_at) < RECENT_S]
        times = [now if worker.works else _last(worker, used_at) for worker in workers]
        self._worked_at = max([self._worked_at, *times])
        idle_s = 0.0 if working else max(0.0, now - self._worked_at)
        return Activity(busy=bool(working), reasons=working, idle_s=idle_s)


def _last(worker: Worker, used_at: Mapping[Tree, float]) -> float:
    return max(worker.worked_at, used_at.get(worker.tree, worker.worked_at) if worker.tree else worker.worked_at)


def cpu_seconds(trees: Sequence[Tree]) -> dict[Tree, float]:
    """What each has used so far. In a thread: a look at all processes takes some milliseconds."""
    processes = _leftovers.read_processes()
    return {tree: _cpu_of(processes, tree) for tree in trees}


def _cpu_of(processes: Sequence[ProcessFacts], tree: Tree) -> float:
    pids = _leftovers.members(processes, tree.pid, tree.mark) | {tree.pid}
    return sum(process.cpu_ticks for process in processes if process.pid in pids) / os.sysconf("SC_CLK_TCK")
