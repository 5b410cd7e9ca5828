"""One real server for all tests of this directory that do not harm it, and one of its own for those that do."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from cloche_server.images import ImageStore

from .server_process import ServerProcess

DRIVERS = ("gvisor", "runc")


@pytest.fixture(scope="session")
def image() -> str:
    """The digest of the image all tests use. Fails, and does not skip, without root or image: see the Makefile."""
    assert os.geteuid() == 0, "sandboxes need root"
    return ImageStore().resolve("python").digest


def short_directory() -> Path:
    """For a server: the path of a Unix socket has 107 bytes."""
    return Path(tempfile.mkdtemp(prefix="cl", dir="/tmp"))


def make_server(*options: str) -> ServerProcess:
    server = ServerProcess(short_directory(), options)
    server.start()
    return server


def end_server(server: ServerProcess) -> None:
    server.remove_all()
    shutil.rmtree(server.directory)


@pytest.fixture(scope="session")
def server(image: str) -> Iterator[ServerProcess]:
    """Shared: leave it running."""
    assert image
    made = make_server()
    yield made
    end_server(made)


@pytest.fixture
def own_server(image: str) -> Iterator[ServerProcess]:
    """For a test that kills it."""
    assert image
    made = make_server()
    yield made
    end_server(made)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with server.client() as made:
        yield made


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make_sandbox(client: httpx.Client) -> Iterator[Callable[..., str]]:
    """Makes sandboxes on the shared server; they are deleted after the test."""
    made: list[str] = []

    def make(**body: object) -> str:
        response = client.post("/v1/sandboxes", json=body)
        assert response.status_code == 201, response.text
        made.append(response.json()["id"])
        return made[-1]

    yield make
    for sandbox_id in made:
        client.delete(f"/v1/sandboxes/{sandbox_id}")
