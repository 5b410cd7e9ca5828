"""ExecSession: a process with a terminal of its own, shown in the user's (`OwnTerminal`): keys in, screen out, size kept.

Three tasks: one shows the output, one types, one tells the size. Only the first one's end, and the user, end the session.
"""

from __future__ import annotations

import asyncio
import codecs
from contextlib import suppress
from typing import Final

from cloche._process import AsyncProcess, output_bytes
from cloche.cli._own_terminal import OwnTerminal, window_size
from cloche.cli._terminal_text import plain
from cloche.errors import ClocheError, Conflict

UNREAD_S: Final = 60.0
"""Keys that the program has not read for so long, nor has room for, are dropped, and the user is told."""


class ExecSession:
    """One use of a process. `run` returns whether its program has exited; if not, the user has left it."""

    def __init__(self, process: AsyncProcess, own: OwnTerminal) -> None:
        self._process = process
        self._own = own
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._keys = bytearray()
        self._typed = asyncio.Event()
        self._resized = asyncio.Event()

    async def run(self) -> bool:
        with self._own.taken(self._take_keys, self._resized.set):
            showing = asyncio.create_task(self._show())
            others = [asyncio.create_task(work) for work in (self._type(), self._keep_size(), self._own.left.wait())]
            try:
                await asyncio.wait({showing, others[-1]}, return_when=asyncio.FIRST_COMPLETED)
                if showing.done():
                    await showing
                return showing.done()
            finally:
                for task in (showing, *others):
                    task.cancel()
                await asyncio.gather(showing, *others, return_exceptions=True)

    async def _show(self) -> None:
        """Until the program has exited and its output is here; what it left behind may go on."""
        async for event in self._process.events():
            if event.type in ("lingering", "finished", "lost"):
                return
            if event.type == "gap":
                self._own.notice(f"{event.data.get('bytes')} bytes of output are no longer kept")
            self._own.show(self._decoder.decode(output_bytes(event)))

    def _take_keys(self, keys: bytes) -> None:
        self._keys += keys
        self._typed.set()

    async def _type(self) -> None:
        while True:
            await self._typed.wait()
            self._typed.clear()
            keys, self._keys = bytes(self._keys), bytearray()
            try:
                await self._process.write(keys, timeout_s=UNREAD_S)
            except Conflict:
                return  # it reads no more, or has ended
            except ClocheError as error:
                self._own.notice(f"keys were lost: {plain(str(error))}")

    async def _keep_size(self) -> None:
        """It may have changed before anybody was told of changes."""
        while True:
            size, told = window_size(), self._process.info.tty
            if told is None or (told.cols, told.rows) != size:
                with suppress(ClocheError):  # a wrong size is not worth an end; the next change tries again
                    await self._process.resize(*size)
            await self._resized.wait()
            self._resized.clear()
