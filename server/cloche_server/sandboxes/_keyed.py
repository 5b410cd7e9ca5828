"""Calls with an idempotency key: the same key and body give what was made the first time, also when both come at once.

What is made is recorded while it is made, so that a server that dies in the middle loses nothing that runs. A key whose call
failed is free again, and so is one of which nothing is left that ever was.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel

from cloche.errors import Conflict, Gone
from cloche_server.state import KeptAnswer, KeptAnswers, Made, Operation

T = TypeVar("T")

Record = Callable[[Made], None]
"""Keeps what has been made so far."""


class Keyed(Generic[T]):
    """The calls of one operation. Keys belong to owners; those of other operations are apart."""

    def __init__(self, operation: Operation, kept: KeptAnswers) -> None:
        self._operation: Final[Operation] = operation
        self._kept = kept
        self._tasks: dict[tuple[str, str], tuple[str, asyncio.Task[T]]] = {}

    async def run(
        self,
        owner: str,
        key: str,
        body_hash: str,
        again: Callable[[Made], T | None],
        work: Callable[[Record], Coroutine[Any, Any, T]],
    ) -> T:
        """What the first call with ``key`` makes, if it is under way, or has made, as ``again`` finds it by what was recorded;
        else what ``work`` makes, which goes on when its caller goes away.

        Raises:
            Conflict: the key was used with another body.
            Gone: what ``again`` raises when all of it was deleted.
        """
        under_way = self._tasks.get((owner, key))
        if under_way is not None:
            _check_same(under_way[0], body_hash, key)
            return await asyncio.shield(under_way[1])
        made = self._made(owner, key, body_hash, again)
        if made is not None:
            return made
        return await asyncio.shield(self._start(owner, key, body_hash, work))

    def _made(self, owner: str, key: str, body_hash: str, again: Callable[[Made], T | None]) -> T | None:
        kept = self._kept.find(owner, self._operation, key)
        made = None if kept is None else again(kept.made)
        if kept is not None and made is not None:
            _check_same(kept.body_hash, body_hash, key)
        return made

    def _start(
        self, owner: str, key: str, body_hash: str, work: Callable[[Record], Coroutine[Any, Any, T]]
    ) -> asyncio.Task[T]:
        def record(made: Made) -> None:
            self._kept.record(owner, self._operation, key, KeptAnswer(body_hash, made))

        task = asyncio.create_task(self._work(owner, key, work(record)))
        self._tasks[owner, key] = (body_hash, task)
        task.add_done_callback(lambda _: self._tasks.pop((owner, key)) and None)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _work(self, owner: str, key: str, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except Exception:  # cancelled, as by the end of the server, it keeps its key: what was made so far may run
            self._kept.forget(owner, self._operation, key)
            raise


def hash_body(wanted: BaseModel, *more: str) -> str:
    """Of the meaning, not the bytes: order of fields and defaults that were spelt out make no difference. ``more``: what
    the path says."""
    canonical = json.dumps(
        [wanted.model_dump(mode="json"), *more] if more else wanted.model_dump(mode="json"), sort_keys=True
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


def deleted_since(kind: str, row_id: str) -> Gone:
    """For a key whose sandbox or snapshot is no more."""
    return Gone(
        f"the {kind} this idempotency key made, {row_id}, was deleted",
        hint=f"use a new key for a new {kind}",
        details={"kind": kind, "id": row_id},
    )


def _check_same(first: str, second: str, key: str) -> None:
    if first != second:
        raise Conflict(
            f"the idempotency key {key!r} was used with another body",
            hint="use a new key for another call",
            details={"kind": "idempotency_key", "key": key},
        )
