"""A program that writes binary, UTF-8 and escape sequences to its terminal, and a viewer that is cut off all the time."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

from viewer import Viewer

KEPT_BYTES = 4_000_000
"""A terminal keeps so much and a little more: of less, nothing may be missing."""

FLOOD = """
import os, random, sys, time, tty
tty.setraw(1)
rng = random.Random(5)
pieces = [rng.randbytes(900), 'grüße 😀 日本語 '.encode() * 30, b'\\x1b[31mred\\x1b[0m ' * 40, bytes(range(256)) * 4]
sent = 0
while sent < int(sys.argv[1]):
    time.sleep(float(sys.argv[2]))
    data = b''.join(rng.choice(pieces) for _ in range(8))
    while data:
        n = os.write(1, data)
        data, sent = data[n:], sent + n
"""


def flood_command(size: int) -> list[str]:
    """A short one writes slowly, so that there are more places to cut."""
    return ["python3", "-c", FLOOD, str(size), "0.002" if size < 50_000_000 else "0"]


def read_with_cuts(viewer: Viewer, size: int, half_way: Callable[[], None] = lambda: None) -> int:
    """To the end of the program, over connections that are cut at random; how many were. ``half_way`` is called once, while
    there is no connection."""
    source, cuts = random.Random(11), 0
    while viewer.close_code != 1000:
        viewer.close_code = None
        for _ in range(source.randint(0, max(4, size // 3_000_000))):
            viewer.pump(1)
            if viewer.exit is not None:
                viewer.until_closed()
                break
        else:
            viewer.cut()
            if cuts and viewer.position > size / 2:
                half_way()
                half_way = _nothing
            viewer.attach()
            cuts += 1
    return cuts


def _nothing() -> None: ...


def check_received(viewer: Viewer, size: int) -> None:
    """Nobody holds the program back while the line is cut: what falls off the log then is said, exactly."""
    expected = expected_flood(size)
    lost = sum(gap.end - gap.start for gap in viewer.gaps)
    assert len(viewer.received) + lost == len(expected)
    assert digest(_with_gaps(viewer, expected)) == digest(expected)
    assert size > KEPT_BYTES or not viewer.gaps


def expected_flood(size: int) -> bytes:
    rng = random.Random(5)
    pieces = [rng.randbytes(900), "grüße 😀 日本語 ".encode() * 30, b"\x1b[31mred\x1b[0m " * 40, bytes(range(256)) * 4]
    sent, parts = 0, []
    while sent < size:
        parts.append(b"".join(rng.choice(pieces) for _ in range(8)))
        sent += len(parts[-1])
    return b"".join(parts)


def _with_gaps(viewer: Viewer, expected: bytes) -> bytes:
    """What was received, each gap filled with what belongs there."""
    parts, position, taken = [], 0, 0
    for gap in viewer.gaps:
        parts += [viewer.received[taken : taken + gap.start - position], expected[gap.start : gap.end]]
        taken, position = taken + gap.start - position, gap.end
    return b"".join([*parts, viewer.received[taken:]])


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
