"""Snapshots of a server: find, delete, carry away as a file; and what differs between two sandboxes or snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol, TypeAlias

from cloche import _lifecycle_calls as _calls
from cloche._answers import built
from cloche._flow import Flow, Transfer, awaiting, blocking, send, send_patiently, transfer
from cloche._link import AsyncLink, Link
from cloche._local_files import FileSink, LocalFile, blocks_of
from cloche._pages import all_pages
from cloche._patience import Patience
from cloche.models import Compare, Comparison, Retention, Snapshot

SnapshotLike: TypeAlias = Snapshot | str
"""A snapshot, its id or its name."""

RetentionOption: TypeAlias = Retention | Mapping[str, float]


class HasId(Protocol):
    """A sandbox or a snapshot."""

    @property
    def id(self) -> str: ...


def reference_of(thing: HasId | str) -> str:
    """As the API names it."""
    return thing if isinstance(thing, str) else thing.id


class SnapshotFlows:
    """Snapshots, as flows."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def _list(
        self,
        *,
        sandbox: HasId | str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        owner: str | None = None,
        limit: int | None = None,
    ) -> Flow[list[Snapshot]]:
        """Snapshots of this key's owner, newest first.

        :param sandbox: of this one, by handle or id, which may be deleted.
        :param labels: only those that have all of these.
        :param owner: of another owner; needs the role admin.
        :param limit: at most so many; None: all.
        """
        single = (("sandbox", None if sandbox is None else reference_of(sandbox)), ("name", name), ("owner", owner))
        chosen = tuple((field, value) for field, value in single if value is not None)
        filters = (*chosen, *(("label", f"{key}={value}") for key, value in (labels or {}).items()))
        return (yield from all_pages(_calls.snapshots, filters, self._patience, limit))

    def _get(self, snapshot: SnapshotLike) -> Flow[Snapshot]:
        """One snapshot.

        :raises NotFound: this key's owner has no such snapshot.
        :raises Gone: it was deleted.
        """
        return (yield from send_patiently(_calls.snapshot(reference_of(snapshot)), self._patience))

    def _delete(self, snapshot: SnapshotLike) -> Flow[Snapshot]:
        """Remove it. What was made from it stays, and so do the snapshots that came from it.

        :raises Conflict: a template needs it, or it is being read.
        """
        return (yield from send(_calls.delete_snapshot(reference_of(snapshot))))

    def _export(self, snapshot: SnapshotLike, target: LocalFile) -> Flow[int]:
        """Write it as one tar file; the number of bytes. It holds the memory and the environment: keep it like a secret.

        :param target: a path, which gets the file when it is whole, or a binary file object.
        """
        with FileSink(target, private=True) as sink:
            yield from transfer(Transfer(_calls.export_snapshot(reference_of(snapshot)), sink=sink.write))
            sink.keep()
            return sink.size

    def _import_(self, source: LocalFile, *, name: str | None = None) -> Flow[Snapshot]:
        """Take in what ``export`` wrote, here or on another server.

        :param source: its path, or a binary file object.
        :param name: None: without a name.
        :raises BadArchive: it is not whole, or not what was written.
        """
        return (yield from transfer(Transfer(_calls.import_snapshot(name), partial(blocks_of, source))))


def compare_flow(
    before: HasId | str, after: HasId | str, root: str | None, diffs: bool | None, patience: Patience
) -> Flow[Comparison]:
    """What differs, from ``before`` to ``after``."""
    body = built(Compare, before=reference_of(before), after=reference_of(after), root=root, diffs=diffs)
    return (yield from send_patiently(_calls.compare(body), patience))


class Snapshots(SnapshotFlows):
    """Snapshots of one server. They are made by `Sandbox.snapshot`."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.patience)
        self._link = link

    list = blocking(SnapshotFlows._list)
    get = blocking(SnapshotFlows._get)
    delete = blocking(SnapshotFlows._delete)
    export = blocking(SnapshotFlows._export)
    import_ = blocking(SnapshotFlows._import_)


class AsyncSnapshots(SnapshotFlows):
    """Snapshots of one server. They are made by `AsyncSandbox.snapshot`."""

    def __init__(self, link: AsyncLink) -> None:
        super().__init__(link.patience)
        self._link = link

    list = awaiting(SnapshotFlows._list)
    get = awaiting(SnapshotFlows._get)
    delete = awaiting(SnapshotFlows._delete)
    export = awaiting(SnapshotFlows._export)
    import_ = awaiting(SnapshotFlows._import_)
