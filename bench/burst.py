"""``bench burst``: many creates in one moment, against a pool that has as many ready, and without one."""

from __future__ import annotations

import asyncio
import time

from bench._api import Api, AsyncConnection
from bench._pools import pool
from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client


def measure(client: Client, image: str | None, driver: str, code: str, n: int, cold: int) -> Table:
    """One driver's table: ``n`` claims at once, then ``cold`` creates at once. `RuntimeError` unless all succeed."""
    api = Api(client)
    try:
        with pool(api, image, driver, n) as name:
            warm = asyncio.run(_burst(api, {"template": name}, code, n, "warm"))
            peer = asyncio.run(_burst(api, {"template": name, "warm": False}, code, cold, "cold"))
    finally:
        api.close()
    base = peer[1].name if cold else None
    return Table(
        f"{n} creates at once on {driver}, out of a pool; {cold} without one", rows_of([*warm, *peer], base), base
    )


async def _burst(api: Api, body: dict[str, object], code: str, n: int, word: str) -> list[Samples]:
    created, total = Samples(f"create, {word}"), Samples(f"create to first result, {word}")
    connections = [await AsyncConnection(api).open() for _ in range(n)]
    began = time.perf_counter()
    made = await asyncio.gather(*(_one(each, body, code, began, created, total) for each in connections))
    for each, sandbox_id in zip(connections, made, strict=True):
        await each.call("DELETE", f"/v1/sandboxes/{sandbox_id}")
        each.close()
    return [created, total]


async def _one(
    connection: AsyncConnection, body: dict[str, object], code: str, began: float, created: Samples, total: Samples
) -> str:
    """Times are from the common beginning: what the last one waits for is part of its time."""
    status, sandbox = await connection.call("POST", "/v1/sandboxes", body)
    if status != 201:
        raise RuntimeError(f"create: {status} {sandbox}")
    if sandbox["origin"]["warm"] is not body.get("warm", True):
        raise RuntimeError(f"not what was measured: {sandbox['origin']}")
    created.add_s(time.perf_counter() - began)
    path = f"/v1/sandboxes/{sandbox['id']}/contexts/default/runs"
    status, run = await connection.call("POST", path, {"code": code})
    if status != 200 or run["status"] != "ok":
        raise RuntimeError(f"run: {status} {run}")
    total.add_s(time.perf_counter() - began)
    return str(sandbox["id"])
