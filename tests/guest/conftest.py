"""One guest for all tests of this directory, and contexts that are shared where a test leaves no trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # --import-mode=importlib: helpers beside the tests are found by name

from guest_process import Context, Guest, running_guest


@pytest.fixture(scope="session")
def guest() -> Iterator[Guest]:
    with running_guest() as running:
        yield running


@pytest.fixture(scope="session")
def shared(guest: Guest) -> Context:
    """A context for tests that use names of their own and leave the kernel alive."""
    return guest.create(name="shared")


@pytest.fixture
def context(guest: Guest) -> Iterator[Context]:
    """A context of the test's own."""
    made = guest.create()
    yield made
    guest.http.delete(made.path)
