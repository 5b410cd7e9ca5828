"""The tree of a sandbox' snapshots. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set

from cloche.models import SnapshotNode, SnapshotTree
from cloche_server.state import SnapshotRow


def tree_of(rows: Sequence[SnapshotRow], parents: Mapping[str, str | None]) -> SnapshotTree:
    """``parents``: of every snapshot that ever was, also of deleted ones: children of a deleted one are shown under its
    nearest ancestor that is among ``rows``, or as roots."""
    present = {row.id for row in rows}
    nearest = {row.id: _nearest(row.parent, present, parents) for row in rows}
    below: dict[str | None, list[SnapshotRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.created_us, row.id), reverse=True):
        below[nearest[row.id]].append(row)
    nodes = []
    pending = [(row, 0) for row in below[None]]
    while pending:
        row, depth = pending.pop()
        nodes.append(SnapshotNode(snapshot=row.to_model(), parent=nearest[row.id], depth=depth))
        pending.extend((child, depth + 1) for child in below[row.id])
    return SnapshotTree(nodes=nodes)


def _nearest(parent: str | None, present: Set[str], parents: Mapping[str, str | None]) -> str | None:
    while parent is not None and parent not in present:
        parent = parents.get(parent)
    return parent
