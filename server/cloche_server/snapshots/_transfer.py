"""Snapshots out of this server and into it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack

from cloche.errors import Forbidden
from cloche.models import Role
from cloche_server.auth import Principal
from cloche_server.ids import new_snapshot_id
from cloche_server.routing import Reply
from cloche_server.sandboxes import DriverSet, Images
from cloche_server.snapshots._archive import Unarchiver, archive
from cloche_server.snapshots._files import storage_errors
from cloche_server.snapshots._library import SnapshotLibrary, check_new_name
from cloche_server.snapshots._manifest import Manifest, is_signed, manifest_of
from cloche_server.state import SnapshotRow


async def export(library: SnapshotLibrary, row: SnapshotRow, key: bytes) -> AsyncGenerator[bytes, None]:
    """The stream of an archive; what can keep it from being written is raised here and not in its middle. The snapshot
    stays until the stream has come to its end or is closed."""
    stack = AsyncExitStack()
    try:
        directory = await stack.enter_async_context(library.using(row))
        pieces = archive(manifest_of(row, row.files), directory, key)
        first = await asyncio.to_thread(next, pieces)
    except BaseException:
        await stack.aclose()
        raise
    return _passed_on(stack, first, pieces)


async def _passed_on(stack: AsyncExitStack, first: bytes, pieces: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    async with stack:
        yield first
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece


class Import:
    """The body of one import: a `BodySink`. Nothing of it can be seen before all of it was checked."""

    def __init__(
        self,
        library: SnapshotLibrary,
        principal: Principal,
        name: str | None,
        *,
        key: bytes,
        images: Images,
        drivers: DriverSet,
    ) -> None:
        check_new_name(name)
        self._library = library
        self._principal = principal
        self._name = name
        self._key = key
        self._images = images
        self._drivers = drivers
        self._id = new_snapshot_id()
        self._unarchiver = Unarchiver(library.files.unfinished(self._id))
        self._accepted = False
        self._lock = threading.Lock()
        self._closed = False

    async def send(self, data: bytes) -> bool:
        """See `BodySink`."""
        try:
            await asyncio.to_thread(self._feed, data)
        except BaseException:
            self.close()
            raise
        return True

    def _feed(self, data: bytes) -> None:
        with self._lock:
            if self._closed:
                return
            with storage_errors():
                self._unarchiver.directory.mkdir(mode=0o700, exist_ok=True)
            self._unarchiver.feed(data)
            if self._unarchiver.manifest is not None and not self._accepted:
                self._accept(self._unarchiver.manifest)
                self._accepted = True

    def _accept(self, manifest: Manifest) -> None:
        """Before any of the content is taken in."""
        if self._principal.role is not Role.ADMIN and not is_signed(manifest, self._key):
            raise Forbidden(
                "this archive was not written by this server, or was changed since; only an admin may import it",
                hint="what was saved of a sandbox is code for the runtime that starts it: docs/security.md",
            )
        self._drivers.choose(manifest.driver)
        self._images.resolve(manifest.image_digest)

    async def reply(self) -> Reply:
        """See `BodySink`."""
        try:
            manifest = self._unarchiver.finish()
            row = self._new_row(manifest)
            self._library.begin(row)
        except BaseException:
            self.close()
            raise
        try:
            ready = await self._library.finish(row, tuple(file.name for file in manifest.files), expected=manifest)
        except BaseException:
            await self._library.give_up(row)
            raise
        return Reply(ready.to_model(), status=201, headers={"Location": f"/v1/snapshots/{ready.id}"})

    def _new_row(self, manifest: Manifest) -> SnapshotRow:
        same = ("memory", "driver", "image", "image_digest", "resources", "sudo", "env", "volumes")
        return SnapshotRow(
            id=self._id,
            owner=self._principal.owner,
            name=self._name,
            state="creating",
            sandbox_id=None,
            parent=None,
            labels={},
            identity=manifest.guest.model_dump() if manifest.guest is not None else {},
            created_us=self._library.clock(),
            **{name: getattr(manifest, name) for name in same},
        )

    def close(self) -> None:
        """What was written is removed behind the back of the caller, who may be the event loop itself."""
        if not self._closed:
            self._library.later(self._discard)

    def _discard(self) -> None:
        with self._lock:
            self._closed = True
            self._unarchiver.close()
            self._library.files.remove(self._id)
