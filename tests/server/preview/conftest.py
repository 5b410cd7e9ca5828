"""One private preview for each test."""

from __future__ import annotations

import pytest

from ..conftest import Harness
from .visitor import Stage


@pytest.fixture
async def stage(cloche: Harness) -> Stage:
    made = Stage(cloche, await cloche.sandbox())
    response = await cloche.client.post(made.path, json={})
    assert response.json()["visibility"] == "private"
    assert response.json()["url"] == f"http://{made.host}/"
    return made
