"""Snapshots and forks with an idempotency key: the same key and body give what was made the first time.

What is being made is recorded while it is made, so that a server that dies in the middle loses no child that runs: the
repeated fork answers with those there are, and says of the others that they were not made.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from cloche.errors import ClocheError, Gone, SandboxStartFailed
from cloche.models import Fork, ForkChild, ForkResult, SandboxState, SnapshotCreate
from cloche_server.auth import Principal
from cloche_server.ids import new_request_id
from cloche_server.sandboxes import Claim, Once, check_same, deleted_since, hash_body
from cloche_server.snapshots._maker import Planned
from cloche_server.state import KeptAnswer, KeptAnswers, SandboxRow, SnapshotRow


class Makes(Protocol):
    """`SnapshotService`. ``planned`` is told ids as soon as there is a row."""

    def create(
        self, principal: Principal, sandbox_id: str, wanted: SnapshotCreate, planned: Claim | None = None
    ) -> Coroutine[Any, Any, SnapshotRow]: ...

    def fork(
        self, principal: Principal, sandbox_id: str, wanted: Fork, planned: Planned | None = None
    ) -> Coroutine[Any, Any, ForkResult]: ...


class Repeated:
    """Keys belong to owners; those of snapshots and of forks are apart."""

    def __init__(
        self,
        makes: Makes,
        kept: KeptAnswers,
        sandbox: Callable[[str], SandboxRow | None],
        snapshot: Callable[[str], SnapshotRow | None],
    ) -> None:
        """``sandbox`` and ``snapshot`` find rows by id, also of what was deleted."""
        self._makes = makes
        self._kept = kept
        self._sandbox = sandbox
        self._snapshot = snapshot
        self._snapshots = Once[SnapshotRow]()
        self._forks = Once[ForkResult]()

    async def snapshot(
        self, principal: Principal, sandbox_id: str, wanted: SnapshotCreate, key: str | None
    ) -> SnapshotRow:
        """`Conflict` for a key that was used with another body or sandbox, `Gone` when its snapshot was deleted since."""
        if key is None:
            return await self._makes.create(principal, sandbox_id, wanted)
        owner, body_hash = principal.owner, hash_body(wanted, sandbox_id)

        def planned(snapshot_id: str) -> None:
            self._kept.record(owner, "snapshot", key, KeptAnswer(body_hash, {"id": snapshot_id}))

        return await self._snapshots.run(
            owner,
            key,
            body_hash,
            lambda: self._snapshot_before(owner, key, body_hash),
            lambda: self._makes.create(principal, sandbox_id, wanted, planned),
        )

    def _snapshot_before(self, owner: str, key: str, body_hash: str) -> SnapshotRow | None:
        kept = self._find(owner, "snapshot", key, body_hash)
        row = None if kept is None else self._snapshot(kept.made["id"])
        if row is not None and row.state == "deleted":
            raise deleted_since("snapshot", row.id)
        return row

    async def fork(self, principal: Principal, sandbox_id: str, wanted: Fork, key: str | None) -> ForkResult:
        """As `snapshot`; children that were deleted since are `Gone` each, and the whole when none is left."""
        if key is None:
            return await self._makes.fork(principal, sandbox_id, wanted)
        owner, body_hash = principal.owner, hash_body(wanted, sandbox_id)
        return await self._forks.run(
            owner,
            key,
            body_hash,
            lambda: self._fork_before(owner, key, body_hash, wanted.count),
            lambda: self._fork(principal, sandbox_id, wanted, key, body_hash),
        )

    def _fork_before(self, owner: str, key: str, body_hash: str, count: int) -> ForkResult | None:
        kept = self._find(owner, "fork", key, body_hash)
        return self._again(kept.made, count) if kept is not None and self._was_made(kept.made) else None

    def _find(self, owner: str, operation: Any, key: str, body_hash: str) -> KeptAnswer | None:
        kept = self._kept.find(owner, operation, key)
        if kept is not None:
            check_same(kept.body_hash, body_hash, key)
        return kept

    async def _fork(self, principal: Principal, sandbox_id: str, wanted: Fork, key: str, body_hash: str) -> ForkResult:
        made: dict[str, Any] = {"done": False, "ids": {}, "errors": {}, "paused_s": 0.0, "ready_s": 0.0}

        def record() -> None:
            self._kept.record(principal.owner, "fork", key, KeptAnswer(body_hash, made))

        def planned(index: int, child_id: str) -> None:
            made["ids"][str(index)] = child_id
            record()

        try:
            result = await self._makes.fork(principal, sandbox_id, wanted, planned)
        except BaseException:
            self._kept.forget(principal.owner, "fork", key)
            raise
        errors = {str(child.index): child.error for child in result.children if child.error is not None}
        made |= {"done": True, "errors": errors, "paused_s": result.paused_s, "ready_s": result.ready_s}
        record()
        return result

    def _was_made(self, made: dict[str, Any]) -> bool:
        """Else a server died before any child ran, and there is nothing to lose."""
        rows = [self._sandbox(child_id) for child_id in made["ids"].values()]
        return bool(made["done"]) or any(row is not None and not _never_ran(row) for row in rows)

    def _again(self, made: dict[str, Any], count: int) -> ForkResult:
        children = [self._child(made, index) for index in range(count)]
        gone = [child for child in children if child.error is not None and child.error["code"] == Gone.code]
        if gone and not any(child.sandbox for child in children):
            raise Gone(
                "the sandboxes this idempotency key made were deleted",
                hint="use a new key for a new fork",
                details={"kind": "idempotency_key"},
            )
        return ForkResult(children=children, paused_s=made["paused_s"], ready_s=made["ready_s"])

    def _child(self, made: dict[str, Any], index: int) -> ForkChild:
        error = made["errors"].get(str(index))
        row = self._sandbox(made["ids"].get(str(index), ""))
        if error is None and row is not None and row.state is SandboxState.DELETED:
            error = _body_of(Gone(f"sandbox {row.id} was deleted", details={"kind": "sandbox", "id": row.id}))
        elif error is None and (row is None or _never_ran(row)):
            error = _body_of(
                SandboxStartFailed("the server was stopped before this child was made", details={"output": ""})
            )
        return ForkChild(index=index, sandbox=None if error or row is None else row.to_model(), error=error)


def _never_ran(row: SandboxRow) -> bool:
    return row.state is SandboxState.FAILED and row.failure is not None and row.failure.reason == "start_failed"


def _body_of(error: ClocheError) -> dict[str, object]:
    return error.to_body(new_request_id()).model_dump(mode="json")
