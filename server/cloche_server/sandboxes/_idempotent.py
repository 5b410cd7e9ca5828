"""Creates with an idempotency key."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol

from cloche.models import SandboxCreate, SandboxState
from cloche_server.auth import Principal
from cloche_server.sandboxes._creating import Claim
from cloche_server.sandboxes._keyed import Keyed, deleted_since, hash_body
from cloche_server.state import IdempotencyClaim, KeptAnswers, Made, SandboxRow, SandboxStore


class Make(Protocol):
    """Makes a sandbox, or hands one out: ``key`` is to be recorded with it, or ``claim`` told the id as soon as it is there."""

    def __call__(
        self, principal: Principal, wanted: SandboxCreate, key: IdempotencyClaim | None, claim: Claim | None, /
    ) -> Coroutine[Any, Any, SandboxRow]: ...


class IdempotentCreate:
    """See `Keyed`."""

    def __init__(self, make: Make, store: SandboxStore, kept: KeptAnswers) -> None:
        self._make = make
        self._store = store
        self._keyed = Keyed[SandboxRow]("create", kept)

    async def create(self, principal: Principal, wanted: SandboxCreate, key: str | None) -> SandboxRow:
        """`Conflict` for a key that was used with another body, `Gone` when its sandbox was deleted since."""
        if key is None:
            return await self._make(principal, wanted, None, None)
        claimed = IdempotencyClaim(key, hash_body(wanted))
        return await self._keyed.run(
            principal.owner,
            key,
            claimed.body_hash,
            self._again,
            lambda record: self._make(principal, wanted, claimed, lambda sandbox_id: record({"id": sandbox_id})),
        )

    def _again(self, made: Made) -> SandboxRow | None:
        row = self._store.get(made["id"])
        if row is None or row.never_ran:
            return None
        if row.state is SandboxState.DELETED:
            raise deleted_since("sandbox", row.id)
        return row
