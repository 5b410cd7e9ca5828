"""Volumes of this server: made, found, mounted while a sandbox has them, deleted.

::

    <data_dir>/volumes/<id>.img      the image, an ext4 file system
    <run_dir>/volumes/<id>           where it is mounted, once, for all sandboxes that have it

Nobody counts users: the rows of the sandboxes say who has which volume, and the kernel says what is mounted. `sweep`
compares both and unmounts what no sandbox with processes has. So a crash at any point, of the server or of a sandbox,
leaves nothing that the next sweep does not find.

What is in a volume was written by sandboxes. Nothing here ever opens or lists it: the root is mounted, and handed to
the driver as a mount.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cloche.errors import ClocheError, Conflict, LimitReached, NotFound
from cloche.models import SandboxState, Volume, VolumeAttachment, VolumeCreate
from cloche_server.auth import Principal
from cloche_server.clock import Clock, now_us, to_datetime
from cloche_server.drivers import VolumeMount
from cloche_server.ids import new_volume_id
from cloche_server.state import PageToken, VolumeFilter, VolumeRow, VolumeStore, name_in_use
from cloche_server.volumes._attaching import check_targets
from cloche_server.volumes._file_system import (
    backing_file,
    is_mounted,
    make_image,
    mount_image,
    mounts_below,
    remove_image,
    remove_point,
    unmount,
    used_bytes,
)
from cloche_server.volumes._mount_table import Mount

_LOG: Final = logging.getLogger("cloche.volumes")

SWEEP_S: Final = 5.0
"""A volume that nobody needs may as well stay mounted for a moment: often the next sandbox wants it."""

_ON_DISK: Final = frozenset({SandboxState.SUSPENDED, SandboxState.STOPPED})
"""Sandboxes that have the volume again when they are resumed, and nothing mounted until then."""


class VolumeService:
    """`prepare` before the first use, `close` at the end: then what is in use stays mounted for the next server."""

    def __init__(
        self, store: VolumeStore, images: Path, mounts: Path, max_per_owner: int, clock: Clock = now_us
    ) -> None:
        self._store = store
        self._images = images
        self._points = mounts
        self._max_per_owner = max_per_owner
        self._clock = clock
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._sweeping: asyncio.Task[None] | None = None

    # What the API asks for

    async def create(self, owner: str, wanted: VolumeCreate) -> Volume:
        """`Conflict` for a name in use, `LimitReached`. The row is written last: an image without one is removed."""
        self._check_new(owner, wanted.name)
        row = VolumeRow(
            id=new_volume_id(),
            owner=owner,
            name=wanted.name,
            size_mb=wanted.size_mb,
            labels=wanted.labels,
            created_us=self._clock(),
        )
        image = self._image(row.id)
        await make_image(image, row.size_mb)
        try:
            self._check_new(owner, wanted.name)
            self._store.insert(row)
        except BaseException:
            remove_image(image)
            raise
        _LOG.info("volume made", extra={"volume_id": row.id})
        return self._to_model(row, [])

    def _check_new(self, owner: str, name: str) -> None:
        if self._store.find(owner, name) is not None:
            raise name_in_use("volume", name)
        count = self._store.count(owner)
        if count >= self._max_per_owner:
            raise LimitReached(
                f"{owner} has {count} volumes, and the limit is {self._max_per_owner}",
                hint="delete one first: cloche volumes rm",
                details={"limit": self._max_per_owner, "count": count},
            )

    def page(self, wanted: VolumeFilter, limit: int, page: str | None) -> tuple[list[Volume], str | None]:
        rows, next_page = self._store.list(wanted, limit, None if page is None else PageToken.decode(page))
        attached = self._attached()
        return [self._to_model(row, attached[row.id]) for row in rows], next_page

    def get(self, principal: Principal, reference: str) -> Volume:
        """By id, or by the name of one of the caller's own."""
        row = self._find(principal, reference)
        return self._to_model(row, self._attached()[row.id])

    async def delete(self, principal: Principal, reference: str) -> Volume:
        """`Conflict` names the sandboxes that have it. From here to the end of the row nothing is awaited: no sandbox can
        take the volume in between."""
        row = self._find(principal, reference)
        attached = self._attached()[row.id]
        if attached:
            raise Conflict(
                f"the volume {row.name} is attached to {', '.join(attached)}",
                hint="delete these sandboxes first",
                details={"kind": "volume", "id": row.id, "sandboxes": [*attached]},
            )
        deleted = self._to_model(row, [])
        self._store.delete(row.id)
        _LOG.info("volume deleted", extra={"volume_id": row.id})
        await self._let_go(row.id)
        return deleted

    def _find(self, principal: Principal, reference: str) -> VolumeRow:
        row = self._store.get(reference)
        if row is None or not principal.may_see(row.owner):
            row = self._store.find(principal.owner, reference)
        if row is None:
            raise _unknown(reference)
        return row

    # What sandboxes ask for

    def resolve(self, owner: str, attachments: Sequence[VolumeAttachment]) -> list[VolumeAttachment]:
        """The same with ids in the place of names. `NotFound`, `InvalidRequest`.

        Insert the sandbox' row before anything is awaited: with it the volume cannot be deleted any more.
        """
        check_targets(attachments)
        return [
            attachment.model_copy(update={"volume": self._own(owner, attachment.volume).id})
            for attachment in attachments
        ]

    def _own(self, owner: str, reference: str) -> VolumeRow:
        row = self._store.get(reference)
        if row is None or row.owner != owner:
            row = self._store.find(owner, reference)
        if row is None:
            raise _unknown(reference)
        return row

    async def mounts(self, owner: str, attachments: Sequence[VolumeAttachment]) -> list[VolumeMount]:
        """For a sandbox that starts; all volumes are mounted now. `NotFound` when one was deleted meanwhile, or is another
        owner's: a snapshot may be older than that, and it may have come from anywhere.

        The sandbox' row names these volumes already, else they may be unmounted again before it has started.
        """
        return [
            VolumeMount(await self._mount(owner, attachment.volume), attachment.path, attachment.read_only)
            for attachment in attachments
        ]

    async def _mount(self, owner: str, volume_id: str) -> Path:
        async with self._locks[volume_id]:
            row = self._store.get(volume_id)
            if row is None or row.owner != owner:
                raise _unknown(volume_id)
            if not is_mounted(self._point(volume_id)):
                self._point(volume_id).mkdir(mode=0o700, exist_ok=True)
                await mount_image(self._image(volume_id), self._point(volume_id))
        return self._point(volume_id)

    # Keeping order

    async def prepare(self) -> None:
        """After a start of the server: mounts of the server before are taken over, or undone when they are not ours;
        images without a row are removed."""
        for directory in (self._images, self._points):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        known = self._store.ids()
        taken_over: set[Path] = set()
        for mount in self._mounts():
            if mount.point in taken_over or not self._is_ours(mount, known):
                await self._undo(mount.point)
            else:
                taken_over.add(mount.point)
        for image in self._images.glob("*.img"):
            if image.stem not in known:
                await asyncio.to_thread(remove_image, image)
        self._sweeping = asyncio.create_task(self._sweep_for_ever())

    def _mounts(self) -> list[Mount]:
        """All that is mounted below our directory, in the order of mounting."""
        return mounts_below(self._points.resolve())

    def _is_ours(self, mount: Mount, known: set[str]) -> bool:
        volume_id = mount.point.name
        return volume_id in known and backing_file(mount.source) == self._image(volume_id).resolve()

    async def _undo(self, point: Path) -> None:
        """Of two mounts at one point the upper one goes."""
        try:
            await unmount(point)
        except ClocheError as error:
            _LOG.warning("a volume could not be unmounted", extra={"volume_id": point.name}, exc_info=error)
        if not is_mounted(point):
            remove_point(point)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self.sweep()
            except Exception:
                _LOG.exception("a sweep failed")

    async def sweep(self) -> None:
        """Unmount what no sandbox with processes has."""
        mounted = {mount.point.name for mount in self._mounts()}
        for volume_id in mounted - self._needed():
            await self._let_go(volume_id)

    def _needed(self) -> set[str]:
        return {a.volume_id for a in self._store.attachments() if a.state not in _ON_DISK}

    async def _let_go(self, volume_id: str) -> None:
        """Unmounted, and without a row its image is removed. What fails here is tried again by the next sweep."""
        async with self._locks[volume_id]:
            point = self._point(volume_id)
            if volume_id in self._needed():
                return
            if is_mounted(point):
                self._store.set_used(volume_id, used_bytes(point))
                await self._undo(point)
            if is_mounted(point):
                return
            if self._store.get(volume_id) is None:
                await asyncio.to_thread(remove_image, self._image(volume_id))
                self._locks.pop(volume_id, None)

    async def close(self) -> None:
        """Sandboxes go on with their volumes."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self.sweep()

    # Words

    def _image(self, volume_id: str) -> Path:
        return self._images / f"{volume_id}.img"

    def _point(self, volume_id: str) -> Path:
        return self._points / volume_id

    def _attached(self) -> defaultdict[str, list[str]]:
        found: defaultdict[str, list[str]] = defaultdict(list)
        for attachment in self._store.attachments():
            if attachment.sandbox_id not in found[attachment.volume_id]:
                found[attachment.volume_id].append(attachment.sandbox_id)
        return found

    def _to_model(self, row: VolumeRow, attached_to: list[str]) -> Volume:
        point = self._point(row.id)
        used = used_bytes(point) if is_mounted(point) else row.used_bytes
        return Volume(
            id=row.id,
            name=row.name,
            owner=row.owner,
            size_mb=row.size_mb,
            used_bytes=used,
            labels=row.labels,
            attached_to=attached_to,
            created_at=to_datetime(row.created_us),
        )


def _unknown(reference: str) -> NotFound:
    return NotFound(
        f"there is no volume {reference}", hint="cloche volumes ls", details={"kind": "volume", "id": reference}
    )
