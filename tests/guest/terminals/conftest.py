"""Helpers beside the tests are found by name, as in the directory above."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from guest_process import Guest, running_guest
from viewer import Viewer

Attach = Callable[..., Viewer]


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with running_guest(SHELL="/bin/sh", PS1="$ ") as running:
        yield running


@pytest.fixture
def terminal(guest: Guest) -> Iterator[Callable[..., dict[str, Any]]]:
    """Makes terminals that end with the test."""
    made: list[str] = []

    def make(*argv: str, **body: Any) -> dict[str, Any]:
        answer = guest.call("POST", "/v1/terminals", {**({"argv": argv} if argv else {}), **body}, status=201)
        made.append(answer["id"])
        return answer

    yield make
    for terminal_id in made:
        guest.http.delete(f"/v1/terminals/{terminal_id}")


@pytest.fixture
def attach(guest: Guest) -> Iterator[Attach]:
    viewers: list[Viewer] = []

    def open_viewer(terminal: dict[str, Any], client: str = "viewer-0001", query: str = "", **size: int) -> Viewer:
        url = f"ws://127.0.0.1:{guest.port}/v1/terminals/{terminal['id']}/attach{query}"
        viewers.append(Viewer(url, client, **size))
        return viewers[-1]

    yield open_viewer
    for viewer in viewers:
        viewer.close()
