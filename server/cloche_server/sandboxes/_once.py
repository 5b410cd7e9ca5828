"""Calls with an idempotency key that are under way: whoever comes with the same key and body waits for the first."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from cloche.errors import Conflict, Gone

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


def deleted_since(kind: str, row_id: str) -> Gone:
    """For a key whose sandbox or snapshot is no more."""
    return Gone(
        f"the {kind} this idempotency key made, {row_id}, was deleted",
        hint=f"use a new key for a new {kind}",
        details={"kind": kind, "id": row_id},
    )


class Once(Generic[T]):
    """Keys belong to owners."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], tuple[str, asyncio.Task[T]]] = {}

    async def run(
        self,
        owner: str,
        key: str,
        body_hash: str,
        before: Callable[[], T | None],
        work: Callable[[], Coroutine[Any, Any, T]],
    ) -> T:
        """What the first call with ``key`` makes, if it is under way, or has made, as ``before`` finds it; else what
        ``work`` makes, which goes on when its caller goes away. `Conflict` for a key with another body."""
        if (found := self._tasks.get((owner, key))) is not None:
            check_same(found[0], body_hash, key)
            return await asyncio.shield(found[1])
        if (made := before()) is not None:
            return made
        return await asyncio.shield(self._start(owner, key, body_hash, work()))

    def _start(self, owner: str, key: str, body_hash: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks[owner, key] = (body_hash, task)
        task.add_done_callback(lambda _: self._tasks.pop((owner, key)) and None)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task
