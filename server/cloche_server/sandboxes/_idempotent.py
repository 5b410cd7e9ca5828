"""Creates with an idempotency key: the same key and body give the same sandbox, also when both come at once."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from cloche.models import SandboxCreate, SandboxState
from cloche_server.auth import Principal
from cloche_server.sandboxes._creating import Claim
from cloche_server.sandboxes._once import Once, check_same, deleted_since, hash_body
from cloche_server.state import IdempotencyClaim, IdempotencyRow, IdempotencyStore, SandboxRow, SandboxStore


class Make(Protocol):
    """Makes a sandbox, or hands one out: ``key`` is to be recorded with it, or ``claim`` told the id as soon as it is there."""

    def __call__(
        self, principal: Principal, wanted: SandboxCreate, key: IdempotencyClaim | None, claim: Claim | None, /
    ) -> Coroutine[Any, Any, SandboxRow]: ...


class IdempotentCreate:
    """Keys belong to owners."""

    def __init__(self, make: Make, store: SandboxStore, records: IdempotencyStore) -> None:
        self._make = make
        self._store = store
        self._records = records
        self._once = Once[SandboxRow]()

    async def create(self, principal: Principal, wanted: SandboxCreate, key: str | None) -> SandboxRow:
        """`Conflict` for a key that was used with another body, `Gone` when its sandbox was deleted since."""
        if key is None:
            return await self._make(principal, wanted, None, None)
        owner, body_hash = principal.owner, hash_body(wanted)

        def claim(sandbox_id: str) -> None:
            self._records.record(owner, key, IdempotencyRow(body_hash, sandbox_id))

        return await self._once.run(
            owner,
            key,
            body_hash,
            lambda: self._before(owner, key, body_hash),
            lambda: self._make(principal, wanted, IdempotencyClaim(key, body_hash), claim),
        )

    def _before(self, owner: str, key: str, body_hash: str) -> SandboxRow | None:
        made = self._records.find(owner, key)
        if made is None:
            return None
        check_same(made.body_hash, body_hash, key)
        row = self._store.get(made.sandbox_id)
        if row is not None and row.state is SandboxState.DELETED:
            raise deleted_since("sandbox", row.id)
        return row
