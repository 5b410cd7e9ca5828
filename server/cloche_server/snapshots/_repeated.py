"""Snapshots and forks with an idempotency key.

A fork that a dead server left half made answers with the children there are, and says of the others that they were not made.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from cloche.errors import ClocheError, Gone, SandboxStartFailed
from cloche.models import Fork, ForkChild, ForkResult, SandboxState, SnapshotCreate
from cloche_server.auth import Principal
from cloche_server.ids import new_request_id
from cloche_server.sandboxes import Claim, Keyed, Record, deleted_since, hash_body
from cloche_server.snapshots._maker import Planned
from cloche_server.state import KeptAnswers, Made, SandboxRow, SnapshotRow


class Makes(Protocol):
    """`SnapshotService`. ``planned`` is told ids as soon as there is a row."""

    def create(
        self, principal: Principal, sandbox_id: str, wanted: SnapshotCreate, planned: Claim | None = None
    ) -> Coroutine[Any, Any, SnapshotRow]: ...

    def fork(
        self, principal: Principal, sandbox_id: str, wanted: Fork, planned: Planned | None = None
    ) -> Coroutine[Any, Any, ForkResult]: ...


class Repeated:
    """See `Keyed`."""

    def __init__(
        self,
        makes: Makes,
        kept: KeptAnswers,
        sandbox: Callable[[str], SandboxRow | None],
        snapshot: Callable[[str], SnapshotRow | None],
    ) -> None:
        """``sandbox`` and ``snapshot`` find rows by id, also of what was deleted."""
        self._makes = makes
        self._sandbox = sandbox
        self._snapshot = snapshot
        self._snapshots = Keyed[SnapshotRow]("snapshot", kept)
        self._forks = Keyed[ForkResult]("fork", kept)

    async def snapshot(
        self, principal: Principal, sandbox_id: str, wanted: SnapshotCreate, key: str | None
    ) -> SnapshotRow:
        """`Conflict` for a key that was used with another body or sandbox, `Gone` when its snapshot was deleted since."""
        if key is None:
            return await self._makes.create(principal, sandbox_id, wanted)
        return await self._snapshots.run(
            principal.owner,
            key,
            hash_body(wanted, sandbox_id),
            self._snapshot_again,
            lambda record: self._makes.create(
                principal, sandbox_id, wanted, lambda snapshot_id: record({"id": snapshot_id})
            ),
        )

    def _snapshot_again(self, made: Made) -> SnapshotRow | None:
        row = self._snapshot(made["id"])
        if row is not None and row.state == "deleted":
            raise deleted_since("snapshot", row.id)
        return row

    async def fork(self, principal: Principal, sandbox_id: str, wanted: Fork, key: str | None) -> ForkResult:
        """As `snapshot`; children that were deleted since are `Gone` each, and the whole when none is left."""
        if key is None:
            return await self._makes.fork(principal, sandbox_id, wanted)
        return await self._forks.run(
            principal.owner,
            key,
            hash_body(wanted, sandbox_id),
            lambda made: self._again(made, wanted.count) if self._was_made(made) else None,
            lambda record: self._fork(principal, sandbox_id, wanted, record),
        )

    async def _fork(self, principal: Principal, sandbox_id: str, wanted: Fork, record: Record) -> ForkResult:
        made: Made = {"done": False, "ids": {}, "errors": {}, "paused_s": 0.0, "ready_s": 0.0}

        def planned(index: int, child_id: str) -> None:
            made["ids"][str(index)] = child_id
            record(made)

        result = await self._makes.fork(principal, sandbox_id, wanted, planned)
        errors = {str(child.index): child.error for child in result.children if child.error is not None}
        made |= {"done": True, "errors": errors, "paused_s": result.paused_s, "ready_s": result.ready_s}
        record(made)
        return result

    def _was_made(self, made: Made) -> bool:
        """Else a server died before any child ran, and there is nothing to lose."""
        rows = [self._sandbox(child_id) for child_id in made["ids"].values()]
        return bool(made["done"]) or any(row is not None and not row.never_ran for row in rows)

    def _again(self, made: Made, count: int) -> ForkResult:
        children = [self._child(made, index) for index in range(count)]
        gone = [child for child in children if child.error is not None and child.error["code"] == Gone.code]
        if gone and not any(child.sandbox for child in children):
            raise Gone(
                "the sandboxes this idempotency key made were deleted",
                hint="use a new key for a new fork",
                details={"kind": "idempotency_key"},
            )
        return ForkResult(children=children, paused_s=made["paused_s"], ready_s=made["ready_s"])

    def _child(self, made: Made, index: int) -> ForkChild:
        error = made["errors"].get(str(index))
        row = self._sandbox(made["ids"].get(str(index), ""))
        if error is None and row is not None and row.state is SandboxState.DELETED:
            error = _body_of(Gone(f"sandbox {row.id} was deleted", details={"kind": "sandbox", "id": row.id}))
        elif error is None and (row is None or row.never_ran):
            error = _body_of(
                SandboxStartFailed("the server was stopped before this child was made", details={"output": ""})
            )
        return ForkChild(index=index, sandbox=None if error or row is None else row.to_model(), error=error)


def _body_of(error: ClocheError) -> dict[str, object]:
    return error.to_body(new_request_id()).model_dump(mode="json")
