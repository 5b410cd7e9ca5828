"""``/proc/net/tcp`` and ``/proc/net/tcp6`` as values. Pure.

Linux and gVisor write the same columns. An address is the memory of its 32-bit words, printed in the machine's order, so
every group of eight digits is turned round on x86 and ARM alike.
"""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import dataclass

_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket that listens. ``inode`` names it in ``/proc/PID/fd``."""

    port: int
    address: str
    inode: int


def parse_listeners(table: str) -> list[Listener]:
    """Every listening socket of one table; lines that are none are passed over."""
    found = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) >= 10 and fields[3] == _LISTEN:
            address, _, port = fields[1].rpartition(":")
            found.append(Listener(int(port, 16), _address(address), int(fields[9])))
    return found


def _address(digits: str) -> str:
    words = [bytes.fromhex(digits[start : start + 8]) for start in range(0, len(digits), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return str(ipaddress.ip_address(b"".join(words)))


def sockets_in_use(sockstat: str) -> tuple[str, ...]:
    """The lines of ``/proc/net/sockstat`` or ``sockstat6`` that change when a TCP socket of this sandbox comes or goes."""
    return tuple(line.split(" orphan", 1)[0] for line in sockstat.splitlines() if line.startswith("TCP"))
