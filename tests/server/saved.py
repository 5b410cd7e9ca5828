"""Snapshots through the API: what their tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from cloche.errors import ErrorBody
from cloche.models import Snapshot

from .conftest import Harness


def code_of(response: httpx.Response) -> str:
    return ErrorBody.model_validate_json(response.content).code


async def snapshot(cloche: Harness, sandbox_id: str, **body: Any) -> Snapshot:
    response = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/snapshots", json=body)
    assert response.status_code == 201, response.text
    return Snapshot.model_validate_json(response.content)


def on_disk(cloche: Harness) -> list[str]:
    return sorted(path.name for path in (cloche.settings.data_dir / "snapshots").iterdir())


async def listed(client: httpx.AsyncClient, query: str = "") -> list[str]:
    response = await client.get(f"/v1/snapshots{query}")
    assert response.status_code == 200, response.text
    return [item["id"] for item in response.json()["items"]]


async def until(condition: Callable[[], bool], bound_s: float = 60) -> None:
    async with asyncio.timeout(bound_s):
        while not condition():
            await asyncio.sleep(0.01)


async def exported(client: httpx.AsyncClient, reference: str) -> bytes:
    response = await client.get(f"/v1/snapshots/{reference}/export")
    assert (response.status_code, response.headers["content-type"]) == (200, "application/x-tar")
    return response.content
