"""Creates with an idempotency key: the same key and body give the same sandbox, also when both come at once."""

from __future__ import annotations

import asyncio
import hashlib
import json

from cloche.errors import Conflict, Gone
from cloche.models import SandboxCreate, SandboxState
from cloche_server.sandboxes._service import SandboxService
from cloche_server.state import IdempotencyRow, IdempotencyStore, SandboxRow


def hash_body(wanted: SandboxCreate) -> str:
    """Of the meaning, not the bytes: order of fields and defaults that were spelt out make no difference."""
    canonical = json.dumps(wanted.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


class IdempotentCreate:
    """Keys belong to owners."""

    def __init__(self, service: SandboxService, records: IdempotencyStore) -> None:
        self._service = service
        self._records = records
        self._under_way: dict[tuple[str, str], tuple[str, asyncio.Task[SandboxRow]]] = {}

    async def create(self, owner: str, wanted: SandboxCreate, key: str | None) -> SandboxRow:
        """`Conflict` for a key that was used with another body, `Gone` when its sandbox was deleted since."""
        if key is None:
            return await self._service.create(owner, wanted)
        body_hash = hash_body(wanted)
        if (owner, key) in self._under_way:
            first_hash, task = self._under_way[owner, key]
            _same(first_hash, body_hash, key)
            return await asyncio.shield(task)
        made = self._records.find(owner, key)
        if made is not None:
            _same(made.body_hash, body_hash, key)
            row = self._service.store.get(made.sandbox_id)
            if row is not None:
                return _still_there(row)
        return await self._first(owner, wanted, key, body_hash)

    async def _first(self, owner: str, wanted: SandboxCreate, key: str, body_hash: str) -> SandboxRow:
        def claim(sandbox_id: str) -> None:
            self._records.record(owner, key, IdempotencyRow(body_hash, sandbox_id))

        task = asyncio.create_task(self._service.create(owner, wanted, claim))
        self._under_way[owner, key] = (body_hash, task)
        task.add_done_callback(lambda _: self._under_way.pop((owner, key)) and None)
        return await asyncio.shield(task)


def _same(first: str, second: str, key: str) -> None:
    if first != second:
        raise Conflict(
            f"the idempotency key {key!r} was used with another body",
            hint="use a new key for a new sandbox",
            details={"kind": "idempotency_key", "key": key},
        )


def _still_there(row: SandboxRow) -> SandboxRow:
    if row.state is SandboxState.DELETED:
        raise Gone(
            f"the sandbox this idempotency key made, {row.id}, was deleted",
            hint="use a new key for a new sandbox",
            details={"kind": "sandbox", "id": row.id},
        )
    return row
