"""Routes of terminals."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Literal

from pydantic import ValidationError
from tornado import iostream, websocket

from cloche.errors import NotFound
from cloche.models import Model, Page
from cloche.models.terminals import Hello, Terminal, TerminalCreate, TerminalSize, client_message
from cloche.terminal_frames import SUBPROTOCOL, FrameError, decode_frame
from cloche_guest.http import Handler, NoQuery
from cloche_guest.terminals.actions import Key
from cloche_guest.terminals.log import Dimensions
from cloche_guest.terminals.service import TerminalService
from cloche_guest.terminals.terminal import LiveTerminal


class TerminalHandler(Handler):
    """Base of all of them."""

    def initialize(self, terminals: TerminalService) -> None:
        self.terminals = terminals


class TerminalsHandler(TerminalHandler):
    """``/v1/terminals``"""

    def get(self) -> None:
        self.read_query(NoQuery)
        self.answer(Page[Terminal](items=[terminal.to_model() for terminal in self.terminals.all()]))

    def post(self) -> None:
        self.read_query(NoQuery)
        self.answer(self.terminals.create(self.read_body(TerminalCreate)).to_model(), 201)


class OneTerminalHandler(TerminalHandler):
    """``/v1/terminals/{terminal_id}``"""

    def get(self, terminal_id: str) -> None:
        self.read_query(NoQuery)
        self.answer(self.terminals.get(terminal_id).to_model())

    async def delete(self, terminal_id: str) -> None:
        self.read_query(NoQuery)
        self.answer(await self.terminals.delete(terminal_id))


class TerminalResizeHandler(TerminalHandler):
    """``.../resize``"""

    def post(self, terminal_id: str) -> None:
        self.read_query(NoQuery)
        body = self.read_body(TerminalSize)
        terminal = self.terminals.get(terminal_id)
        terminal.resize(Dimensions(body.cols, body.rows))
        self.answer(terminal.to_model())


class RecordingHandler(TerminalHandler):
    """``.../recording``"""

    async def get(self, terminal_id: str) -> None:
        self.read_query(NoQuery)
        terminal = self.terminals.get(terminal_id)
        if not terminal.has_recording:
            raise NotFound(f"terminal {terminal_id} is not recorded", details={"kind": "recording", "id": terminal_id})
        self.set_header("Content-Type", "application/x-asciicast")
        try:
            for piece in terminal.asciicast():
                self.write(piece)
                await self.flush()
        except iostream.StreamClosedError:
            return
        self.finish()


class AttachQuery(Model):
    """``access`` is set by the server, which knows who asks."""

    access: Literal["read", "write"] = "write"


class AttachHandler(TerminalHandler, websocket.WebSocketHandler):
    """``.../attach``: the protocol of docs/terminals.md. Nothing here waits, so the next message is always read, and what the
    program answers leaves in the turn of the loop in which it came."""

    _terminal: LiveTerminal
    _may_write: bool
    _key: Key | None = None

    def check_origin(self, origin: str) -> bool:
        """The server, the only one who can reach the guest, has checked it."""
        return True

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return SUBPROTOCOL if SUBPROTOCOL in subprotocols else None

    async def get(self, *args: str) -> None:
        self._may_write = self.read_query(AttachQuery).access == "write"
        self._terminal = self.terminals.get(args[0])
        await super().get(*args)

    def open(self, *_: str) -> None:
        self.set_nodelay(True)
        self._attached = False
        self._unsent: deque[str | bytes] = deque()
        self._busy = False
        self._key = self._terminal.connect(self._send)

    def on_message(self, message: str | bytes) -> None:
        assert self._key is not None
        if self._terminal.closing(self._key) is not None:
            return
        try:
            said = decode_frame(message) if isinstance(message, bytes) else client_message.validate_json(message)
        except (FrameError, ValidationError):
            self.close(1008, "not a message of term.v1")
            return
        if self._attached:
            self._terminal.receive(self._key, said)
        elif isinstance(said, Hello):
            self._attached = True
            self._terminal.attach(self._key, said, may_write=self._may_write)
        else:
            self.close(1008, "the first message must be hello")

    def on_close(self) -> None:
        if self._key is not None:
            self._terminal.disconnect(self._key)

    def _send(self) -> None:
        """All there is, as far as the connection takes it. Called whenever there may be something, even by our own `pull`."""
        if not self._busy:
            self._busy = True
            try:
                self._busy = not self._send_all()
            except websocket.WebSocketClosedError:
                return  # for ever: `on_close` comes

    def _send_all(self) -> bool:
        """False: the connection is full, and `_go_on` is called when it is no longer."""
        assert self._key is not None
        while (message := self._next(self._key)) is not None:
            written = self.write_message(message, binary=isinstance(message, bytes))
            if self._is_full:
                written.add_done_callback(self._go_on)
                return False
        if (closing := self._terminal.closing(self._key)) is not None:
            self.close(*closing)
        return True

    def _next(self, key: Key) -> str | bytes | None:
        if not self._unsent:
            self._unsent.extend(self._terminal.pull(key))
        return self._unsent.popleft() if self._unsent else None

    @property
    def _is_full(self) -> bool:
        """The last message waits, or was lost with the connection."""
        stream = None if self.ws_connection is None else self.ws_connection.stream
        return stream is None or stream.closed() or stream.writing()

    def _go_on(self, written: asyncio.Future[None]) -> None:
        if not written.cancelled() and written.exception() is None:
            self._busy = False
            self._send()
