"""The strict runner: beside warnings as errors, nothing unexpected may be logged and nothing may be left running.

A test that provokes a log line of level WARNING or above declares it::

    @pytest.mark.expected_logs("the guest of .* did not answer")
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's affair, and a run on a busy one must not fail for it. Examples are the same in
# every run, like the order of tests (see SEED in the Makefile); --hypothesis-profile=search looks for new ones.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("search"), derandomize=True)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with SIGINT ignored, and every program of a test would inherit that: no Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "expected_logs(*patterns): log lines (WARNING and above) this test provokes")


CHANCE = "Unknown child process pid|exit status already read"
"""asyncio's words when a process is killed, or its start cancelled, at the very moment at which it ends by itself: the kill
looks first, takes the exit status, and the thread that waits for it finds none."""


@pytest.fixture(autouse=True)
def _no_unexpected_logs(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail on a line of level WARNING or above that the test did not declare."""
    yield
    patterns = [CHANCE, *(p for mark in request.node.iter_markers("expected_logs") for p in mark.args)]
    records = [r for phase in ("setup", "call", "teardown") for r in caplog.get_records(phase)]
    unexpected = [
        f"{r.name}: {r.getMessage()}"
        for r in records
        if r.levelno >= logging.WARNING and not any(re.search(p, r.getMessage()) for p in patterns)
    ]
    assert not unexpected, "unexpected log lines:\n" + "\n".join(unexpected)


def child_pids() -> set[int]:
    """Direct children of the test process, zombies included."""
    found: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # of a thread that has just ended
            found.update(map(int, path.read_text().split()))
    return found


@pytest.fixture(autouse=True, scope="session")
def _no_leaked_processes() -> Iterator[None]:
    """The whole run leaves no child process behind."""
    before = child_pids()
    yield
    left = child_pids() - before
    assert not left, "left running: " + "; ".join(command_line(pid) for pid in left)


def command_line(pid: int) -> str:
    """For messages: pid and command of a process, or its absence."""
    try:
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace')}"
    except OSError:
        return f"{pid} (gone)"


@pytest.fixture
def open_descriptors() -> Iterator[None]:
    """Use this where descriptors matter: the test may not leave more open than it found."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before, "descriptors leaked"
