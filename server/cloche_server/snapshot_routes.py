"""The routes of snapshots, restore, fork and compare; part of `cloche_server.routes`."""

from __future__ import annotations

from typing import Final

from cloche.errors import (
    Conflict,
    DriverUnavailable,
    Gone,
    GuestFault,
    LimitReached,
    NotFound,
    SandboxNotRunning,
    SandboxStartFailed,
    SandboxUnreachable,
    SnapshotBroken,
    SnapshotFailed,
    UnsupportedCapability,
)
from cloche.models import (
    Compare,
    Comparison,
    Fork,
    ForkResult,
    Page,
    Restore,
    Role,
    Sandbox,
    Snapshot,
    SnapshotCreate,
    SnapshotTree,
)
from cloche_server.api import snapshots
from cloche_server.routing import ListSandboxSnapshots, ListSnapshots, NewName, Route

_S: Final = "/v1/sandboxes/{sandbox_id}"
_ONE: Final = "/v1/snapshots/{snapshot}"

_SAVING: Final = (
    *(Conflict, SandboxNotRunning, SandboxUnreachable, SnapshotFailed, UnsupportedCapability),
    *(SandboxStartFailed, DriverUnavailable, GuestFault, LimitReached),
)
_STARTING: Final = (SnapshotBroken, SandboxStartFailed, DriverUnavailable)
_FINDING: Final = (NotFound, Gone)

SNAPSHOT_ROUTES: Final = [
    Route(
        "POST",
        _S + "/snapshots",
        "create_snapshot",
        "Save a sandbox as it is; it goes on running",
        "snapshots",
        {201: Snapshot},
        snapshots.create,
        body=SnapshotCreate,
        role=Role.MEMBER,
        own_errors=_SAVING,
        headers=("Idempotency-Key",),
        timed="snapshot",
    ),
    Route(
        "GET",
        _S + "/snapshots",
        "list_sandbox_snapshots",
        "Snapshots of a sandbox, newest first",
        "snapshots",
        {200: Page[Snapshot]},
        snapshots.list_of_sandbox,
        query=ListSandboxSnapshots,
    ),
    Route(
        "GET",
        _S + "/snapshots/tree",
        "snapshot_tree",
        "Which snapshot came from which",
        "snapshots",
        {200: SnapshotTree},
        snapshots.tree,
    ),
    Route(
        "POST",
        _S + "/restore",
        "restore_sandbox",
        "Roll a sandbox back to a snapshot, in place",
        "snapshots",
        {200: Sandbox},
        snapshots.restore,
        body=Restore,
        role=Role.MEMBER,
        own_errors=(*_SAVING, *_STARTING),
        timed="restore",
    ),
    Route(
        "POST",
        _S + "/fork",
        "fork_sandbox",
        "More sandboxes from this instant of a running one",
        "snapshots",
        {201: ForkResult},
        snapshots.fork,
        body=Fork,
        role=Role.MEMBER,
        own_errors=(*_SAVING, *_STARTING),
        headers=("Idempotency-Key",),
        timed="fork",
    ),
    Route(
        "GET",
        "/v1/snapshots",
        "list_snapshots",
        "Snapshots, newest first",
        "snapshots",
        {200: Page[Snapshot]},
        snapshots.list_some,
        query=ListSnapshots,
    ),
    Route(
        "POST",
        "/v1/snapshots/import",
        "import_snapshot",
        "Take in what export wrote",
        "snapshots",
        {201: Snapshot},
        sink=snapshots.open_import,
        bytes_body=True,
        large=True,
        query=NewName,
        role=Role.MEMBER,
        own_errors=(*_FINDING, Conflict, LimitReached, DriverUnavailable, SnapshotBroken),
    ),
    Route(
        "GET", _ONE, "get_snapshot", "One snapshot", "snapshots", {200: Snapshot}, snapshots.get, own_errors=_FINDING
    ),
    Route(
        "DELETE",
        _ONE,
        "delete_snapshot",
        "Delete a snapshot; what was made from it stays",
        "snapshots",
        {200: Snapshot},
        snapshots.delete,
        role=Role.MEMBER,
        own_errors=(*_FINDING, Conflict),
    ),
    Route(
        "GET",
        _ONE + "/export",
        "export_snapshot",
        "A snapshot as one file, a tar stream",
        "snapshots",
        {200: "application/x-tar"},
        snapshots.export,
        role=Role.MEMBER,
        own_errors=(*_FINDING, Conflict, SnapshotBroken),
        large=True,
    ),
    Route(
        "POST",
        "/v1/compare",
        "compare",
        "What differs between two sandboxes or snapshots",
        "snapshots",
        {200: Comparison},
        snapshots.compare,
        body=Compare,
        role=Role.MEMBER,
        own_errors=(*_FINDING, *_SAVING, *_STARTING),
    ),
]
