"""Volumes of a server, and how a new sandbox is told which it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cloche import _volume_calls, models
from cloche._answers import built
from cloche._flow import Flow, awaiting, blocking, send, send_patiently
from cloche._link import AsyncLink, Link
from cloche._patience import Patience

VolumesOption = Mapping[str, str] | Sequence[models.VolumeAttachment | Mapping[str, object]]
"""Path in the sandbox -> volume (name or id); or attachments, which can be read-only."""


def attachments(volumes: VolumesOption | None) -> list[object] | None:
    """For `SandboxCreate`, which checks them; None: none were asked for."""
    if volumes is None:
        return None
    if isinstance(volumes, Mapping):
        return [{"volume": volume, "path": path} for path, volume in volumes.items()]
    return list(volumes)


class VolumeFlows:
    """Volumes, as flows."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def _create(
        self, name: str, *, size_mb: int | None = None, labels: Mapping[str, str] | None = None
    ) -> Flow[models.Volume]:
        """Make an empty volume.

        :param size_mb: MiB it may hold; None: the server's default, 1024.
        :raises Conflict: a volume of this name exists.
        """
        body = built(models.VolumeCreate, name=name, size_mb=size_mb, labels=labels)
        return (yield from send(_volume_calls.create_volume(body)))

    def _list(self, *, labels: Mapping[str, str] | None = None, owner: str | None = None) -> Flow[list[models.Volume]]:
        """Volumes of this key's owner, newest first.

        :param labels: only those that have all of these.
        :param owner: of another owner; needs the role admin.
        """
        chosen = (("owner", owner),) if owner is not None else ()
        filters = (*chosen, *(("label", f"{key}={value}") for key, value in (labels or {}).items()))
        found: list[models.Volume] = []
        page: str | None = None
        while True:
            query = (*filters, *((("page", page),) if page else ()))
            answer = yield from send_patiently(_volume_calls.volumes(query), self._patience)
            found += answer.items
            page = answer.next_page
            if page is None:
                return found

    def _get(self, name_or_id: str) -> Flow[models.Volume]:
        """One volume, and which sandboxes have it.

        :raises NotFound: this key's owner has no such volume.
        """
        return (yield from send_patiently(_volume_calls.volume(name_or_id), self._patience))

    def _delete(self, name_or_id: str) -> Flow[models.Volume]:
        """Remove a volume with everything in it.

        :raises Conflict: a sandbox has it; ``details["sandboxes"]`` are their ids.
        """
        return (yield from send(_volume_calls.delete_volume(name_or_id)))


class Volumes(VolumeFlows):
    """Volumes of one server."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.patience)
        self._link = link

    create = blocking(VolumeFlows._create)
    list = blocking(VolumeFlows._list)
    get = blocking(VolumeFlows._get)
    delete = blocking(VolumeFlows._delete)


class AsyncVolumes(VolumeFlows):
    """Volumes of one server."""

    def __init__(self, link: AsyncLink) -> None:
        super().__init__(link.patience)
        self._link = link

    create = awaiting(VolumeFlows._create)
    list = awaiting(VolumeFlows._list)
    get = awaiting(VolumeFlows._get)
    delete = awaiting(VolumeFlows._delete)
