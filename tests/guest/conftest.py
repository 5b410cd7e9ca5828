"""One guest for all tests of this directory, and contexts that are shared where a test leaves no trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # --import-mode=importlib: helpers beside the tests are found by name

from guest_process import GRACE_S, Context, Guest, running_guest


@pytest.fixture(scope="session")
def guest() -> Iterator[Guest]:
    with running_guest() as running:
        yield running


@pytest.fixture(scope="session")
def shared(guest: Guest) -> Context:
    """A context for tests that use names of their own and leave the kernel alive. Its runs have longer than usual to stop
    when they are interrupted: on a busy machine five seconds may not do, and the kernel would be killed."""
    return guest.create(name="shared", interrupt_grace_s=GRACE_S)


@pytest.fixture
def context(guest: Guest) -> Iterator[Context]:
    """A context of the test's own."""
    made = guest.create()
    yield made
    guest.http.delete(made.path)
