"""Snapshots: sandboxes of one instant, saved; restored, made into others, compared, carried away and back."""

from cloche_server.snapshots._files import SnapshotFiles
from cloche_server.snapshots._library import SnapshotLibrary
from cloche_server.snapshots._service import SnapshotService

__all__ = ["SnapshotFiles", "SnapshotLibrary", "SnapshotService"]
