"""Mixed output: a program that writes binary and UTF-8 to both streams, and a reader that checks every byte.

The program stays `AHEAD` bytes ahead of its reader at most: it waits for a line of input for each `STEP` bytes. The journal
keeps 9 MiB, so nothing may be missing, however long the connection is away and however much is written.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from typing import Final

from cloche import Process, output_bytes

FLOOD_MB: Final = int(os.environ.get("CLOCHE_TEST_FLOOD_MB", "8"))
"""200 is the long form. Up to 8 all of it stays in the journal, and can be read again."""

TIME_S: Final = 180 + 5 * FLOOD_MB
"""A bound for the test: the suite's own, and 200 kB a second on a machine that has much else to do."""

AHEAD: Final = 4_000_000
STEP: Final = 1_000_000

_PIECES: Final = """
def pieces(size):
    source, sent, number = random.Random(7), 0, 0
    while sent < size:
        data = source.randbytes(source.randint(1, 9000)) if number % 3 else f"zeile é漢🙂 {number}\\n".encode() * 40
        yield 1 if number % 5 else 2, data
        number += 1
        sent += len(data)
"""
_PROGRAM: Final = f"""
import os, random, sys, time
{_PIECES}
sent, may = 0, {AHEAD}
for stream, data in pieces(int(sys.argv[1])):
    if sent >= may:
        os.read(0, 1)
        may += {STEP}
    os.write(stream, data)
    sent += len(data)
    time.sleep(float(sys.argv[2]))
"""


class MixedOutput:
    """``size`` bytes in all; ``start`` gives them, ``read`` wants them."""

    def __init__(self, size: int = FLOOD_MB * 1_000_000) -> None:
        self.size = size
        self.received = 0
        self._given = 0

    def command(self, python: str) -> list[str]:
        """To be started with ``stdin="open"``. A short one writes slowly: more events, so more places to cut."""
        return [python, "-c", _PROGRAM, str(self.size), "0.001" if self.size <= 8_000_000 else "0"]

    def read(self, process: Process, disturb: Callable[[], None] = lambda: None) -> None:
        """All events, from the oldest; ``disturb`` is called after each. Reading again is fine while all of it is kept."""
        sums = {"stdout": hashlib.sha256(), "stderr": hashlib.sha256()}
        cursors: set[str] = set()
        self.received = 0
        for event in process.events():
            assert event.type != "gap", event.data
            assert event.cursor not in cursors
            cursors.add(event.cursor)
            if event.type in sums:
                data = output_bytes(event)
                sums[event.type].update(data)
                self.received += len(data)
                self._let_go_on(process)
            disturb()
        assert {name: found.hexdigest() for name, found in sums.items()} == self._wanted()

    def _let_go_on(self, process: Process) -> None:
        due = min(self.received, self.size - AHEAD) // STEP
        if due > self._given:
            process.write(b"\n" * (due - self._given))
            self._given = due

    def _wanted(self) -> dict[str, str]:
        names: dict[str, object] = {"random": random}
        exec(_PIECES, names)
        sums = {"stdout": hashlib.sha256(), "stderr": hashlib.sha256()}
        for stream, data in names["pieces"](self.size):  # type: ignore[operator]
            sums["stdout" if stream == 1 else "stderr"].update(data)
        return {name: found.hexdigest() for name, found in sums.items()}
