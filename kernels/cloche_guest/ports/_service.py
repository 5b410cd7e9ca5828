"""What listens in the sandbox, and a word about every change.

Nothing tells when a port opens, so the guest looks, often after a change and seldom when nothing happens. A look is cheap:
on Linux ``/proc/net/sockstat`` (20 us) says whether the number of TCP sockets changed; only then, and every
`FULL_LOOK_S` or `IDLE_LOOK_S`, are the tables read, which takes Linux some ms because it walks the connections of the
whole machine. gVisor has no such file, but its tables take 0.15 ms to read: there it counts whether they say the same.
Changes between two looks that cancel each other out are not seen: an event may be missing for a port that was open for
less than `LONGEST_PAUSE_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from cloche.errors import LimitReached
from cloche.models.ports import ListeningPort, PortHolder
from cloche_guest.ports._holders import find_holders
from cloche_guest.ports._table import Listener, parse_listeners, sockets_in_use
from cloche_guest.ports._tunnel import relay
from cloche_guest.pulse import PERIOD_S, until_pulse

SHORTEST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = PERIOD_S
GROWTH: Final = 1.2
FULL_LOOK_S: Final = 10.0
"""For a port that came while another socket went, between two looks."""
IDLE_LOOK_S: Final = 60.0
"""The same where no number changed for as long: every 10 s this was most of what an idle sandbox does on runc, 0.86 of
1.38 ms of processor time in a second."""
SHARE: Final = 0.03
"""Of one CPU, at most, for reading the tables; but `LONGEST_WAIT_S` at most between a change and the look at it."""
LONGEST_WAIT_S: Final = 3.0

MAX_TUNNELS: Final = 512

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_COUNTS: Final = (Path("/proc/net/sockstat"), Path("/proc/net/sockstat6"))


@dataclass(frozen=True, slots=True)
class _Seen:
    """A port, and the sockets that were behind it."""

    inodes: frozenset[int]
    port: ListeningPort


Tell = Callable[[str, Mapping[str, JsonValue]], None]


class PortService:
    """``tell(type, data)`` hears ``port_opened`` and ``port_closed``. Call `start`, and `stop` at the end."""

    def __init__(self, tell: Tell) -> None:
        self.reserved: set[int] = set()
        """Ports the guest itself listens on: not shown, and nobody is let through to them."""
        self._tell = tell
        self._thread = ThreadPoolExecutor(1, "ports")
        self._open: dict[int, _Seen] = {}
        self._looking = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._tunnels = 0
        self._carried: set[asyncio.Task[None]] = set()
        self._cost_s = 0.0

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def list(self) -> list[ListeningPort]:
        """As it is now, by number."""
        await self._look(anew=True)
        return [self._open[port].port for port in sorted(self._open)]

    @contextlib.contextmanager
    def count_tunnel(self) -> Iterator[None]:
        """For the life of one tunnel.

        Raises:
            LimitReached: there are `MAX_TUNNELS`.
        """
        if self._tunnels >= MAX_TUNNELS:
            raise LimitReached(
                f"{MAX_TUNNELS} connections to ports of this sandbox are open", details={"limit": MAX_TUNNELS}
            )
        self._tunnels += 1
        try:
            yield
        finally:
            self._tunnels -= 1

    async def carry(self, outer: socket.socket, app: socket.socket, first: bytes) -> None:
        """`relay`, until it ends or all tunnels are closed."""
        task = asyncio.create_task(relay(outer, app, first))
        self._carried.add(task)
        task.add_done_callback(self._carried.discard)
        await asyncio.wait([task])

    def close_tunnels(self) -> None:
        """Cut them all; their sockets are closed within two turns of the loop."""
        for task in self._carried:
            task.cancel()

    async def _watch(self) -> None:
        counts: object = None
        pause_s = SHORTEST_PAUSE_S
        looked = stirred = 0.0
        while True:
            now = time.monotonic()
            new_counts = _socket_counts()
            changed = new_counts != counts
            stirred = now if changed else stirred
            full_look_s = FULL_LOOK_S if now - stirred < IDLE_LOOK_S else IDLE_LOOK_S
            if (changed or now - looked > full_look_s) and now - looked > min(self._cost_s / SHARE, LONGEST_WAIT_S):
                counts = new_counts
                if await self._look(anew=False):
                    pause_s = SHORTEST_PAUSE_S
                looked = time.monotonic()
            settled = pause_s >= LONGEST_PAUSE_S
            await asyncio.sleep(until_pulse(asyncio.get_running_loop().time()) if settled else pause_s)
            pause_s = min(pause_s * GROWTH, LONGEST_PAUSE_S)

    async def _look(self, *, anew: bool) -> bool:
        """True when a port came or went. ``anew``: ask for every port who holds it, also for those known already."""
        async with self._looking:
            known = {} if anew else self._open
            reserved = frozenset(self.reserved)
            loop = asyncio.get_running_loop()
            found, self._cost_s = await loop.run_in_executor(self._thread, _timed_look, known, reserved)
            before, self._open = self._open, found
        self._report(before, found)
        return before.keys() != found.keys()

    def _report(self, before: Mapping[int, _Seen], now: Mapping[int, _Seen]) -> None:
        for port in sorted(before.keys() ^ now.keys()):
            if port in now:
                self._tell("port_opened", now[port].port.model_dump())
            else:
                self._tell("port_closed", {"port": port})


def _socket_counts() -> tuple[str, ...]:
    """Something that is another whenever a port came or went."""
    try:
        return tuple(line for path in _COUNTS for line in sockets_in_use(path.read_text()))
    except FileNotFoundError:  # gVisor
        return tuple(map(_text, _TABLES))


def _timed_look(known: Mapping[int, _Seen], reserved: frozenset[int]) -> tuple[dict[int, _Seen], float]:
    """With the CPU time it took."""
    began = time.thread_time()
    return _look(known, reserved), time.thread_time() - began


def _look(known: Mapping[int, _Seen], reserved: frozenset[int]) -> dict[int, _Seen]:
    """In the thread. Ports that are ``known`` with the same sockets are not asked again who holds them."""
    listeners: dict[int, list[Listener]] = {}
    for path in _TABLES:
        for listener in parse_listeners(_text(path)):
            if listener.port not in reserved:
                listeners.setdefault(listener.port, []).append(listener)
    inodes = {port: frozenset(listener.inode for listener in each) for port, each in listeners.items()}
    new = {port for port in listeners if port not in known or known[port].inodes != inodes[port]}
    holders = find_holders({min(inodes[port]) for port in new})
    return {
        port: _Seen(inodes[port], _to_model(port, each, holders.get(min(inodes[port])))) if port in new else known[port]
        for port, each in listeners.items()
    }


def _to_model(port: int, listeners: Sequence[Listener], holder: PortHolder | None) -> ListeningPort:
    addresses = sorted({listener.address for listener in listeners})
    return ListeningPort(port=port, addresses=addresses, process=holder)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:  # a kernel without IPv6
        return ""
