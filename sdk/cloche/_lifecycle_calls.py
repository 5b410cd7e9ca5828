"""The calls of a sandbox' life, its snapshots and its forks; as `cloche._calls`, whose contract is docs/protocol.md."""

from __future__ import annotations

from typing import Final, Literal

from cloche import models
from cloche._answers import model_parser
from cloche._calls import CREATE_ANSWER_S, Call, Query, json_body, keyed, sandbox_path, segment

SAVE_ANSWER_S: Final = 900.0
"""Writing memory is bounded by the server with 60 s and 30 s for each GiB; hashing what was written comes on top."""

FORK_ANSWER_S: Final = 60.0
"""For each child, beside what saving takes."""

TRANSFER_ANSWER_S: Final = 640.0
"""Between two parts of an archive, and for the last digest of one that was taken in."""

ARCHIVE: Final = {"Content-Type": "application/x-tar"}

_change = model_parser(models.StateChange)
_sandbox = model_parser(models.Sandbox)
_snapshot = model_parser(models.Snapshot)
_snapshots = model_parser(models.Page[models.Snapshot])
_tree = model_parser(models.SnapshotTree)
_forked = model_parser(models.ForkResult)
_comparison = model_parser(models.Comparison)

StateCall = Literal["pause", "suspend", "stop", "resume"]


def change_state(sandbox_id: str, what: StateCall) -> Call[models.StateChange]:
    """Repeatable: what is the case already is answered at once."""
    path = f"{sandbox_path(sandbox_id)}/{what}"
    return Call("POST", path, _change, repeatable=True, answer_within_s=SAVE_ANSWER_S)


def create_snapshot(sandbox_id: str, body: models.SnapshotCreate, idempotency_key: str) -> Call[models.Snapshot]:
    return keyed(f"{sandbox_path(sandbox_id)}/snapshots", _snapshot, body, idempotency_key, SAVE_ANSWER_S)


def snapshot_tree(sandbox_id: str) -> Call[models.SnapshotTree]:
    return Call("GET", f"{sandbox_path(sandbox_id)}/snapshots/tree", _tree, repeatable=True)


def restore(sandbox_id: str, body: models.Restore) -> Call[models.Sandbox]:
    """Not repeatable: what was done in the sandbox after the first one would be undone by the second."""
    path = f"{sandbox_path(sandbox_id)}/restore"
    return Call("POST", path, _sandbox, body=json_body(body), answer_within_s=SAVE_ANSWER_S)


def fork(sandbox_id: str, body: models.Fork, idempotency_key: str) -> Call[models.ForkResult]:
    within_s = SAVE_ANSWER_S + FORK_ANSWER_S * body.count
    return keyed(f"{sandbox_path(sandbox_id)}/fork", _forked, body, idempotency_key, within_s)


def snapshots(query: Query) -> Call[models.Page[models.Snapshot]]:
    return Call("GET", "/v1/snapshots", _snapshots, query=query, repeatable=True)


def sandbox_snapshots(sandbox_id: str, query: Query) -> Call[models.Page[models.Snapshot]]:
    return Call("GET", f"{sandbox_path(sandbox_id)}/snapshots", _snapshots, query=query, repeatable=True)


def snapshot(reference: str) -> Call[models.Snapshot]:
    return Call("GET", snapshot_path(reference), _snapshot, repeatable=True)


def delete_snapshot(reference: str) -> Call[models.Snapshot]:
    """The server waits 60 s for those who are reading it."""
    return Call("DELETE", snapshot_path(reference), _snapshot, answer_within_s=CREATE_ANSWER_S)


def export_snapshot(reference: str) -> Call[bytes]:
    return Call("GET", f"{snapshot_path(reference)}/export", bytes, answer_within_s=TRANSFER_ANSWER_S)


def import_snapshot(name: str | None) -> Call[models.Snapshot]:
    query = (("name", name),) if name is not None else ()
    path = "/v1/snapshots/import"
    return Call("POST", path, _snapshot, query=query, headers=ARCHIVE, answer_within_s=TRANSFER_ANSWER_S)


def compare(body: models.Compare) -> Call[models.Comparison]:
    path = "/v1/compare"
    return Call("POST", path, _comparison, body=json_body(body), repeatable=True, answer_within_s=2 * SAVE_ANSWER_S)


def snapshot_path(reference: str) -> str:
    return f"/v1/snapshots/{segment('snapshot', reference)}"
