"""A guest whose worker is another user's process (nobody), so permission errors are real ones."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from file_calls import NOBODY
from guest_process import Guest, running_guest


@pytest.fixture(scope="package")
def guest() -> Iterator[Guest]:
    with running_guest(CLOCHE_GUEST_USER="nobody") as running:
        running.home.parent.chmod(0o755)
        os.chown(running.home, NOBODY, NOBODY)
        yield running


@pytest.fixture
def home(guest: Guest, request: pytest.FixtureRequest) -> Path:
    """A directory of the user's, for one test."""
    path = guest.home / hashlib.sha1(request.node.name.encode()).hexdigest()[:12]
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)
    return path
