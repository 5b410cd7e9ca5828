"""A real server on loopback, with a fake driver and fake guests, for each test."""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloche.models import KeyCreate, Role
from cloche_server.assembly import RunningServer, running_server
from cloche_server.auth import new_secret
from cloche_server.settings import Settings
from cloche_server.state import Database

from .fake_driver import FakeDriver, FakeImages

PATIENCE_S = 60.0
"""Of every client in these tests. The five seconds of httpx are not enough on a machine that does much else."""

TLS = ssl.create_default_context()
"""Made once: every client that makes its own reads all certificates of the machine."""


@cache
def migrated() -> bytes:
    """An empty database. Bringing a new one up to date is a good part of a server's start, and the same in every test."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "database"
        Database.open(path).close()
        return path.read_bytes()


@dataclass
class Harness:
    """``client`` has an admin key."""

    server: RunningServer
    driver: FakeDriver
    settings: Settings
    client: httpx.AsyncClient
    base: str

    def key(self, owner: str, role: Role = Role.MEMBER) -> str:
        secret = new_secret()
        self.server.services.keys.create(KeyCreate(owner=owner, role=role), secret)
        return secret

    def client_of(self, owner: str, role: Role = Role.MEMBER) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.base,
            headers={"Authorization": f"Bearer {self.key(owner, role)}"},
            trust_env=False,
            verify=TLS,
            timeout=PATIENCE_S,
        )

    def stranger(self, key: str | None = None) -> httpx.AsyncClient:
        """Nobody the server knows, or whoever holds ``key``."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.base, headers=headers, trust_env=False, verify=TLS, timeout=PATIENCE_S)

    def nodelay(self) -> list[bool]:
        """Of each connection that the server has now: whether Nagle's algorithm is off."""
        found = []
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # it is closed already, or the one that listens
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(name))) as one:
                        if one.family == socket.AF_INET and one.getsockname()[1] == self.server.port:
                            one.getpeername()
                            found.append(bool(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        return found

    async def sandbox(self, **body: Any) -> str:
        response = await self.client.post("/v1/sandboxes", json=body)
        assert response.status_code == 201, response.text
        return str(response.json()["id"])


@asynccontextmanager
async def harness(directory: Path, driver: FakeDriver | None = None, **settings: Any) -> AsyncIterator[Harness]:
    driver = driver or FakeDriver()
    chosen = Settings(
        data_dir=directory / "data", run_dir=directory / "run", port=0, **{"shutdown_grace_s": 0.5, **settings}
    )
    chosen.data_dir.mkdir(exist_ok=True)
    if not chosen.database_path.exists():
        chosen.database_path.touch(0o600)
        chosen.database_path.write_bytes(migrated())
    async with running(chosen, driver) as server:
        secret = chosen.admin_key_path.read_text().strip()
        base = f"http://127.0.0.1:{server.port}"
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(
            base_url=base, headers=headers, trust_env=False, verify=TLS, timeout=PATIENCE_S
        ) as client:
            yield Harness(server, driver, chosen, client, base)


@asynccontextmanager
async def running(settings: Settings, driver: FakeDriver) -> AsyncIterator[RunningServer]:
    async with running_server(settings, [driver], FakeImages()) as server:
        yield server


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """The path of a Unix socket has 107 bytes; pytest's own directories are longer."""
    with tempfile.TemporaryDirectory(prefix="clo-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.fixture
async def cloche(short_dir: Path) -> AsyncIterator[Harness]:
    async with harness(short_dir) as running:
        yield running
    for guest in list(running.driver.guests.values()):  # after the server, which would find its sandboxes broken
        await guest.close()
