"""The account of one sandbox: readings in, sums out. Pure.

Theory of operation: cgroup and uplinks count from the beginning of a life; the sums go on over all lives. Each reading
adds what a counter gained since the last one. A new life begins at zero, which is known in two ways: the last life was
closed and the epoch is another one, or a counter says less than before. Memory is a level, not a count: it is multiplied
with the time between two readings, the mean of both for each.

What is needed to go on after a restart of the server is in the sums themselves (`to_json`): they are all that is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

N = TypeVar("N", int, float)

MEBIBYTE: Final = 1024 * 1024
MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one moment. ``cpu_s``, ``received`` and ``sent`` count since the beginning of the life."""

    at_us: int
    cpu_s: float
    memory_bytes: int
    memory_peak_bytes: int
    processes: int
    disk_bytes: int
    received: int
    sent: int


class Account:
    """``sums`` as `to_json` gave them; empty for a new sandbox."""

    def __init__(self, sums: Mapping[str, float]) -> None:
        self.cpu_s = sums.get("cpu_s", 0.0)
        self.memory_peak_bytes = int(sums.get("memory_peak_bytes", 0))
        self.memory_mb_s = sums.get("memory_mb_s", 0.0)
        self.received = int(sums.get("received", 0))
        self.sent = int(sums.get("sent", 0))
        self.running_s = sums.get("running_s", 0.0)
        self.last: Reading | None = None
        """None before the first reading of this server process."""
        self._at_us = int(sums.get("at_us", 0))
        self._cpu_seen = sums.get("cpu_seen", 0.0)
        self._received_seen = 0
        self._sent_seen = 0
        self._memory_seen = sums.get("memory_seen")
        self._closed = bool(sums.get("closed", 0))
        self._epoch: str | None = None

    def add(self, reading: Reading, epoch: str, started_us: int, *, running: bool) -> None:
        """``started_us``: when this life began. Not ``running``: it is frozen, and holds its memory all the same."""
        if self._closed and epoch != self._epoch:
            self._begin_life()
        self._epoch = epoch
        self._add_time(reading, started_us, running)
        self.cpu_s += _gain(self._cpu_seen, reading.cpu_s)
        self.received += _gain(self._received_seen, reading.received)
        self.sent += _gain(self._sent_seen, reading.sent)
        self.memory_peak_bytes = max(self.memory_peak_bytes, reading.memory_peak_bytes, reading.memory_bytes)
        self._cpu_seen, self._received_seen, self._sent_seen = reading.cpu_s, reading.received, reading.sent
        self.last = reading

    def _begin_life(self) -> None:
        self._at_us, self._memory_seen, self._closed = 0, None, False
        self._cpu_seen, self._received_seen, self._sent_seen = 0.0, 0, 0

    def _add_time(self, reading: Reading, started_us: int, running: bool) -> None:
        passed_s = max(0, reading.at_us - max(self._at_us, started_us)) / MICROSECONDS
        before = reading.memory_bytes if self._memory_seen is None else self._memory_seen
        self.memory_mb_s += passed_s * (before + reading.memory_bytes) / 2 / MEBIBYTE
        if running:
            self.running_s += passed_s
        self._at_us, self._memory_seen = reading.at_us, reading.memory_bytes

    def close_life(self) -> None:
        """What was read last is the end of this life. The same life may still be read; that changes little."""
        self._closed = True

    def to_json(self) -> dict[str, float]:
        sums: dict[str, float] = {
            "cpu_s": self.cpu_s,
            "memory_peak_bytes": self.memory_peak_bytes,
            "memory_mb_s": self.memory_mb_s,
            "received": self.received,
            "sent": self.sent,
            "running_s": self.running_s,
            "at_us": self._at_us,
            "cpu_seen": self._cpu_seen,
        }
        if self._memory_seen is not None:
            sums["memory_seen"] = self._memory_seen
        return sums | ({"closed": 1} if self._closed else {})


def _gain(before: N, now: N) -> N:
    """A counter that says less than before was set back to zero."""
    return now - before if now >= before else now
