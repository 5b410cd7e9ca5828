"""Calls with an idempotency key that are under way: whoever comes with the same key and body waits for the first."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Coroutine
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from cloche.errors import Conflict

T = TypeVar("T")


def hash_body(wanted: BaseModel, *more: str) -> str:
    """Of the meaning, not the bytes: order of fields and defaults that were spelt out make no difference. ``more``: what
    the path says."""
    canonical = json.dumps(
        [wanted.model_dump(mode="json"), *more] if more else wanted.model_dump(mode="json"), sort_keys=True
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


def check_same(first: str, second: str, key: str) -> None:
    """`Conflict` when ``key`` was used with another body."""
    if first != second:
        raise Conflict(
            f"the idempotency key {key!r} was used with another body",
            hint="use a new key for another call",
            details={"kind": "idempotency_key", "key": key},
        )


class Once(Generic[T]):
    """Keys belong to owners."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], tuple[str, asyncio.Task[T]]] = {}

    def under_way(self, owner: str, key: str, body_hash: str) -> asyncio.Task[T] | None:
        """The first call with ``key``, while it goes on. `Conflict`."""
        found = self._tasks.get((owner, key))
        if found is None:
            return None
        check_same(found[0], body_hash, key)
        return found[1]

    def start(self, owner: str, key: str, body_hash: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """It goes on when its caller goes away."""
        task = asyncio.create_task(work)
        self._tasks[owner, key] = (body_hash, task)
        task.add_done_callback(lambda _: self._tasks.pop((owner, key)) and None)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task
