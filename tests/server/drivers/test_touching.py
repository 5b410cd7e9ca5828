"""What is looked at is mapped afterwards; what is not there stays so."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloche_server.drivers._touching import STEP_BYTES, touch_memory

RUNTIME = f"""
import mmap, os, sys
file = os.memfd_create("runsc-memory")
os.ftruncate(file, 64 * {STEP_BYTES})
os.pwrite(file, bytes(8 * {STEP_BYTES}), 0)
os.pwrite(file, bytes(4 * {STEP_BYTES}), 32 * {STEP_BYTES})
memory = mmap.mmap(file, 64 * {STEP_BYTES})
print(file, flush=True)
sys.stdin.read()
"""
"""As runsc: a file with holes that others have written, mapped whole and not looked at."""


@pytest.fixture
def runtime() -> Iterator[tuple[int, int]]:
    """Its pid, and the number of its file."""
    command = (sys.executable, "-c", RUNTIME)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.kill()


def mapped_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if "memfd:runsc-memory" in line)
    return next(int(line.split()[1]) * 1024 for line in lines[at:] if line.startswith("Rss:"))


def allocated_bytes(pid: int, file: int) -> int:
    return os.stat(f"/proc/{pid}/fd/{file}").st_blocks * 512


def test_what_is_there_is_mapped_and_holes_stay_holes(runtime: tuple[int, int]) -> None:
    pid, file = runtime
    before = allocated_bytes(pid, file)
    assert mapped_bytes(pid) == 0
    touch_memory(pid, threading.Event())
    assert mapped_bytes(pid) >= 12 * STEP_BYTES // 2  # a kernel may map less around a fault than it does by default
    assert allocated_bytes(pid, file) == before


def test_it_ends_when_that_is_enough(runtime: tuple[int, int]) -> None:
    enough = threading.Event()
    enough.set()
    touch_memory(runtime[0], enough)
    assert mapped_bytes(runtime[0]) == 0


def test_nothing_happens_to_a_process_without_such_a_file_or_that_is_gone() -> None:
    touch_memory(os.getpid(), threading.Event())
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    touch_memory(process.pid, threading.Event())
