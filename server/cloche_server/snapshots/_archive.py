"""A snapshot as one file: a tar stream, the manifest first, then the content of each file. Pure but for the files it reads
and writes; nothing here holds more than a few MiB.

Disk images are long and mostly empty, so a member has only the pieces that the manifest lists as ``extents``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cloche.errors import InvalidRequest
from cloche.tar_stream import END, Item, Member, MemberEnd, TarError, TarParser, encode_header, padding
from cloche_server.snapshots._digest import CHUNK, extents_of
from cloche_server.snapshots._files import storage_errors
from cloche_server.snapshots._manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    Manifest,
    ManifestFile,
    read_manifest,
    sign,
)

CONTENT_TYPE: Final = "application/x-tar"


def with_extents(manifest: Manifest, directory: Path) -> Manifest:
    """As an archive's head has it."""
    return manifest.model_copy(update={"files": [_measured(directory, file) for file in manifest.files]})


def _measured(directory: Path, file: ManifestFile) -> ManifestFile:
    fd = os.open(directory / file.name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return file.model_copy(update={"extents": extents_of(fd)})
    finally:
        os.close(fd)


def archive(manifest: Manifest, directory: Path, key: bytes) -> Iterator[bytes]:
    """The stream, in pieces of up to a MiB. Blocks on the disk."""
    head = sign(with_extents(manifest, directory), key)
    raw = head.model_dump_json().encode()
    mtime = manifest.created_at.timestamp()
    yield encode_header(Member(MANIFEST, "file", len(raw), 0o600, mtime)) + raw + padding(len(raw))
    for file in head.files:
        yield encode_header(Member(file.name, "file", file.stored_bytes, 0o600, mtime))
        yield from _pieces(directory / file.name, file)
        yield padding(file.stored_bytes)
    yield END


def _pieces(path: Path, file: ManifestFile) -> Iterator[bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, length in file.extents or ():
            for offset in range(start, start + length, CHUNK):
                wanted = min(CHUNK, start + length - offset)
                data = os.pread(fd, wanted, offset)
                if len(data) < wanted:
                    raise OSError(f"{path.name} has become shorter while it was read")
                yield data
    finally:
        os.close(fd)


@dataclass(slots=True)
class Unarchiver:
    """Feed it the stream; it fills ``directory``, which exists and is empty. Nothing but the names in the manifest is ever
    opened, in the order of the manifest. `InvalidRequest` for anything unexpected, `StorageFull`.

    ``manifest`` is there as soon as it was read. Whether the content is what it says is for the caller to check.
    """

    directory: Path
    manifest: Manifest | None = None
    _parser: TarParser = field(default_factory=TarParser)
    _head: bytearray = field(default_factory=bytearray)
    _written: int = 0
    _member: str | None = None
    _fd: int = -1
    _extents: list[tuple[int, int]] = field(default_factory=list)

    def feed(self, data: bytes) -> None:
        with storage_errors():
            try:
                for item in self._parser.feed(data):
                    self._take(item)
            except TarError as error:
                raise _refused(f"the tar stream was refused: {error}") from error

    def finish(self) -> Manifest:
        """After the last piece: everything was there."""
        try:
            self._parser.close()
        except TarError as error:
            raise _refused(f"the tar stream was refused: {error}") from error
        if self.manifest is None or self._written < len(self.manifest.files) or not self._parser.finished:
            raise _refused("the stream ended before all files of the snapshot were there")
        return self.manifest

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _take(self, item: Item) -> None:
        if isinstance(item, Member):
            self._begin(item)
        elif isinstance(item, MemberEnd):
            self._end()
        elif self._fd >= 0:
            self._write(item)
        else:
            self._head += item

    def _begin(self, member: Member) -> None:
        wanted = self._next_name()
        if member.kind != "file" or member.name != wanted:
            raise _refused(f"{member.name[:100]!r} is in the stream where {wanted!r} was expected")
        self._member = wanted
        if self.manifest is None:
            if member.size > MAX_MANIFEST_BYTES:
                raise _refused(f"the manifest has {member.size} bytes; {MAX_MANIFEST_BYTES} are allowed")
            return
        file = self.manifest.files[self._written]
        if member.size != file.stored_bytes:
            raise _refused(
                f"{file.name} has {member.size} bytes in the stream, and {file.stored_bytes} in the manifest"
            )
        self._fd = os.open(self.directory / file.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, file.size)
        self._extents = list(reversed(file.extents or ()))

    def _next_name(self) -> str | None:
        if self.manifest is None:
            return MANIFEST
        return self.manifest.files[self._written].name if self._written < len(self.manifest.files) else None

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            offset, length = self._extents.pop()
            count = os.pwrite(self._fd, view[:length], offset)
            if count < length:
                self._extents.append((offset + count, length - count))
            view = view[count:]

    def _end(self) -> None:
        if self.manifest is None:
            self.manifest = read_manifest(bytes(self._head))
            self._head.clear()
        else:
            self.close()
            self._written += 1


def _refused(why: str) -> InvalidRequest:
    return InvalidRequest(
        why,
        hint="import what `cloche snapshots export` wrote, unchanged",
        details={"errors": [{"field": "body", "problem": why}]},
    )
