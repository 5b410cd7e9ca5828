"""Fixtures of the SDK's tests: a server that plays the protocol, and clients of it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from protocol_app import KEY, App, Server

from cloche import AsyncClient, Client


@pytest.fixture
def server() -> Iterator[Server]:
    played = Server()
    yield played
    played.stop()


@pytest.fixture
def app(server: Server) -> App:
    return server.app


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url, KEY, reconnect_s=20) as made:
        yield made


@pytest.fixture
async def async_client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url, KEY, reconnect_s=20) as made:
        yield made
