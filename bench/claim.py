"""``bench claim``: from asking for a sandbox of a template to the result of its first cell, out of a pool and without one."""

from __future__ import annotations

import time

from bench._api import Api
from bench._pools import pool, wait_until_full
from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client

POOL: int = 4


def measure(client: Client, image: str | None, driver: str, code: str, n: int, cold: int) -> Table:
    """One driver's table. The pool is full again before each claim, so that no refill runs beside it."""
    api = Api(client)
    warm = [Samples("claim"), Samples("its first cell"), Samples("claim to first result")]
    peer = [Samples("cold create"), Samples("its first cell, cold"), Samples("cold create to first result")]
    try:
        with pool(api, image, driver, POOL) as name:
            for _ in range(n):
                _one(api, {"template": name}, code, warm, expect_warm=True)
                wait_until_full(api, POOL)
            for _ in range(cold):
                _one(api, {"template": name, "warm": False}, code, peer, expect_warm=False)
    finally:
        api.close()
    rows = rows_of([*warm, *peer], baseline="cold create to first result")
    return Table(f"a sandbox of a template on {driver}, {code!r}", rows, "cold create to first result")


def _one(api: Api, body: dict[str, object], code: str, samples: list[Samples], expect_warm: bool) -> None:
    started = time.perf_counter()
    sandbox = api.call("POST", "/v1/sandboxes", body)
    running = time.perf_counter()
    run = api.call("POST", f"/v1/sandboxes/{sandbox['id']}/contexts/default/runs", {"code": code})
    done = time.perf_counter()
    if run["status"] != "ok" or sandbox["origin"]["warm"] is not expect_warm:
        raise RuntimeError(f"not what was measured: {sandbox['origin']}, {run['status']}, {run['error']}")
    api.call("DELETE", f"/v1/sandboxes/{sandbox['id']}")
    for sample, seconds in zip(samples, (running - started, done - running, done - started), strict=True):
        sample.add_s(seconds)
