"""Bytes of a program in a sandbox on a stream of this one: unchanged into files and pipes, filtered onto a terminal."""

from __future__ import annotations

import codecs
from typing import TextIO

from cloche.cli._terminal_text import TerminalFilter


class OutputStream:
    """Where stdout or stderr goes."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._filter = TerminalFilter() if file.isatty() else None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, data: bytes) -> None:
        """At once."""
        if self._filter is None:
            self._file.flush()
            self._file.buffer.write(data)
            self._file.buffer.flush()
        else:
            self._show(self._decoder.decode(data))

    def close(self) -> None:
        """Show what was half a character."""
        if self._filter is not None:
            self._show(self._decoder.decode(b"", final=True))

    def _show(self, text: str) -> None:
        assert self._filter is not None
        encoding = self._file.encoding or "utf-8"
        self._file.write(self._filter.feed(text).encode(encoding, "replace").decode(encoding))
        self._file.flush()
