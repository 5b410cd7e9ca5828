"""The digest of a file that may have holes.

Disk images of sandboxes are sparse: 4 GiB long, with some MiB in them. Zeros and holes read the same and are copied into
one another, so both are passed over: the digest is of the file's length and of every MiB that is not all zero, with its
place. Two files with the same bytes have the same digest, however they lie on the disk.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CHUNK: Final = 1024 * 1024
MAX_EXTENTS: Final = 65_535
"""Pieces of one file in an archive; a disk image of 4 GiB has some hundred."""

_ZEROS: Final = bytes(CHUNK)


def digest_of_file(path: Path) -> str:
    """Hexadecimal SHA-256. Blocks for about half a second for each GiB of content; `OSError` as reading gives it."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        digest.update(os.fstat(file.fileno()).st_size.to_bytes(8, "big"))
        for offset, data in content_of(file.fileno()):
            digest.update(offset.to_bytes(8, "big"))
            digest.update(data)
    return digest.hexdigest()


def content_of(fd: int) -> Iterator[tuple[int, bytes]]:
    """Every chunk that is not all zero, with its offset; offsets are multiples of `CHUNK`."""
    size = os.fstat(fd).st_size
    offset = 0
    while offset < size:
        offset = _next_data(fd, offset) // CHUNK * CHUNK
        data = _read(fd, offset)
        if data != _ZEROS[: len(data)]:
            yield offset, data
        offset += CHUNK


def extents_of(fd: int) -> list[tuple[int, int]]:
    """Offset and length of everything that is not a hole, as the file system has it; no content is read."""
    size = os.fstat(fd).st_size
    found: list[tuple[int, int]] = []
    offset = _next_data(fd, 0)
    while offset < size:
        end = os.lseek(fd, offset, os.SEEK_HOLE)
        if len(found) == MAX_EXTENTS:  # the rest as if it had no holes
            end = size
        found.append((offset, end - offset))
        offset = _next_data(fd, end) if end < size else size
    return found


def _next_data(fd: int, offset: int) -> int:
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return os.fstat(fd).st_size  # only a hole is left


def _read(fd: int, offset: int) -> bytes:
    """One chunk, shorter only at the end of the file."""
    data = os.pread(fd, CHUNK, offset)
    while len(data) < CHUNK and (more := os.pread(fd, CHUNK - len(data), offset + len(data))):
        data += more
    return data
