"""A template and a pool for a measurement, and waiting until it is full."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bench._api import Api

NAME: Final = "bench"
FULL_WITHIN_S: Final = 900.0


@contextmanager
def pool(api: Api, image: str | None, driver: str, size: int) -> Iterator[str]:
    """Its name is the template's, too: one default context, started. Filled when the body begins, gone after it."""
    body = {
        "name": NAME,
        "driver": driver,
        "contexts": [{"code": "import json"}],
        **({"image": image} if image else {}),
    }
    version = api.call("POST", "/v1/templates", body)
    while version["state"] == "building":
        version = api.call("GET", f"/v1/templates/{NAME}@{version['version']}?wait_s=60")
    api.call("PUT", f"/v1/pools/{NAME}", {"template": NAME, "min": size, "max": size})
    try:
        wait_until_full(api, size)
        yield NAME
    finally:
        api.call("DELETE", f"/v1/pools/{NAME}")
        api.call("DELETE", f"/v1/templates/{NAME}")


def wait_until_full(api: Api, size: int) -> None:
    """`RuntimeError` when it is not full in time."""
    deadline = time.monotonic() + FULL_WITHIN_S
    while (state := api.call("GET", f"/v1/pools/{NAME}"))["stats"]["ready"] < size:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the pool is not full: {state}")
        time.sleep(0.2)
