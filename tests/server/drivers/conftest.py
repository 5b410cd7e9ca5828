"""Both drivers for real, and one shared sandbox of each for the tests that only look."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloche_server.drivers import OciDriver, open_drivers
from cloche_server.images import ImageStore

from .harness import Sandbox, running

DRIVERS = ("gvisor", "runc")


@pytest.fixture(scope="session")
def roots() -> Iterator[Path]:
    """Short, because socket paths are at most 107 bytes; holds ``run`` and ``data``."""
    directory = Path(tempfile.mkdtemp(prefix="cl"))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def rootfs() -> Path:
    assert os.geteuid() == 0, "sandboxes need root"
    return ImageStore().resolve("python").rootfs


@pytest.fixture(scope="session")
def drivers(roots: Path) -> Iterator[dict[str, OciDriver]]:
    opened = open_drivers(roots / "data", roots / "run")
    yield opened
    for driver in opened.values():
        asyncio.run(_destroy_all(driver))
        driver.close()


async def _destroy_all(driver: OciDriver) -> None:
    """What a failed test left. A test that passes leaves nothing, see `test_leaks`."""
    for sandbox_id in await driver.list():
        await driver.destroy(sandbox_id)


@pytest.fixture(scope="session", params=DRIVERS)
def driver(request: pytest.FixtureRequest, drivers: dict[str, OciDriver]) -> OciDriver:
    return drivers[request.param]


@pytest.fixture
def scratch(roots: Path) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir=roots))
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def shared(driver: OciDriver, rootfs: Path, roots: Path) -> Iterator[Sandbox]:
    """For probes that change nothing another test could notice."""
    with running(driver, rootfs, roots / f"uplink-{driver.name}") as sandbox:
        yield sandbox


@pytest.fixture(scope="session")
def runc_sandbox(drivers: dict[str, OciDriver], rootfs: Path, roots: Path) -> Iterator[Sandbox]:
    """For what only a real kernel can be asked."""
    with running(drivers["runc"], rootfs, roots / "uplink-runc-only") as sandbox:
        yield sandbox
