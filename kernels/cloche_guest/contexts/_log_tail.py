"""The last lines a kernel wrote to its real stderr: crash dumps, import errors."""

from __future__ import annotations

import asyncio
import os

TAIL_BYTES = 4096


class LogTail:
    """Reads a pipe and keeps its end; reading never stops, so a chatty kernel is never blocked."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._tail = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._read)

    def text(self) -> str:
        """What there is, as one trimmed text."""
        self._read()
        return self._tail.decode(errors="replace").strip()

    def forget(self) -> None:
        """What was said so far explains nothing that happens later."""
        self._read()
        self._tail = b""

    def close(self) -> None:
        """Closing twice does nothing."""
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self) -> None:
        if self._descriptor is None:
            return
        try:
            data = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return
        if not data:
            self.close()
        self._tail = (self._tail + data)[-TAIL_BYTES:]
