"""Recordings: what a terminal showed and when, as an asciicast (version 2) to download.

On disk a record is a header (seconds since the start, kind, length) and raw bytes: writing costs a copy, and only a
download pays for the JSON. The file is bounded by `MAX_BYTES`; what comes later is left out, and the recording says so.
It is unlinked as soon as it is open, so nothing is left behind whatever happens, and nobody else can open it.
"""

from __future__ import annotations

import codecs
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from typing import Final

from cloche_guest.terminals.log import Dimensions

MAX_BYTES: Final = 16 * 1024 * 1024
"""Days of ordinary work; 64 terminals of a sandbox then take at most 1 GiB of its disk."""

OUTPUT: Final = b"o"
RESIZE: Final = b"r"
MARKER: Final = b"m"

_RECORD: Final = struct.Struct(">dcI")
_READ_BYTES: Final = 256 * 1024


class Recording:
    """One terminal's. Close it."""

    def __init__(self, directory: str, size: Dimensions, started_at: float, max_bytes: int = MAX_BYTES) -> None:
        self._file, path = tempfile.mkstemp(dir=directory)
        os.unlink(path)
        self._size = size
        self._started_at = started_at
        self._max_bytes = max_bytes
        self._bytes = 0
        self._full = False

    def add(self, at_s: float, kind: bytes, data: bytes) -> None:
        """``at_s``: since the start. A disk that is full ends the recording, not the terminal."""
        if self._full:
            return
        if self._bytes + len(data) + _RECORD.size > self._max_bytes:
            self._full = True
            kind, data = MARKER, f"the recording ends here: it has {self._max_bytes} bytes".encode()
        try:
            self._bytes += os.write(self._file, _RECORD.pack(at_s, kind, len(data)) + data)
        except OSError:
            self._full = True

    def asciicast(self, title: str) -> Iterator[bytes]:
        """The lines of the file as it is now, in pieces; whole, also when it is closed meanwhile."""
        file, end = os.dup(self._file), self._bytes
        try:
            yield from self._lines(file, end, title)
        finally:
            os.close(file)

    def _lines(self, file: int, end: int, title: str) -> Iterator[bytes]:
        header: dict[str, object] = {
            "version": 2,
            "width": self._size.cols,
            "height": self._size.rows,
            "timestamp": int(self._started_at),
            "env": {"TERM": "xterm-256color"},
        }
        if title:
            header["title"] = title
        yield json.dumps(header).encode() + b"\n"
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for at_s, kind, data in _records(file, end):
            text = decoder.decode(data) if kind == OUTPUT else data.decode()
            if text:
                yield json.dumps([round(at_s, 6), kind.decode(), text]).encode() + b"\n"

    def close(self) -> None:
        """Release it; the disk space is free again."""
        os.close(self._file)


def _records(file: int, end: int) -> Iterator[tuple[float, bytes, bytes]]:
    at, buffer = 0, b""
    while more := os.pread(file, min(_READ_BYTES, end - at), at):
        at += len(more)
        buffer, start = buffer + more, 0
        while len(buffer) - start >= _RECORD.size:
            at_s, kind, length = _RECORD.unpack_from(buffer, start)
            stop = start + _RECORD.size + length
            if len(buffer) < stop:
                break
            yield at_s, kind, buffer[start + _RECORD.size : stop]
            start = stop
        buffer = buffer[start:]
