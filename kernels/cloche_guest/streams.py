"""Journals over SSE and WebSocket: one cursor walking forward, with the back-pressure of its own connection.

A reader that is slow only falls behind and meets a gap; nothing is buffered for it. Everything that is there goes out
in one write, so a flood costs one flush a batch and not one a record.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from pydantic import ValidationError
from tornado import iostream, websocket

from cloche.errors import ClocheError, InvalidRequest
from cloche.journal import Cursor, Gap, Record
from cloche.journal_feed import JournalFeed
from cloche.models import Model
from cloche_guest.events import TextRecords, event_json, event_type
from cloche_guest.http import Handler, invalid

HEARTBEAT_S: Final = 15.0
_CLOSE_REASON_BYTES: Final = 123
"""RFC 6455: a control frame has 125 bytes, two of them are the code."""

_HEARTBEAT: Final = b": heartbeat\n\n"


class StreamQuery(Model):
    """``?cursor=``: go on behind this place; none: from the oldest record kept."""

    cursor: str | None = None


class StreamHandler(Handler, websocket.WebSocketHandler):
    """Serves one feed: as WebSocket when the client asks to upgrade, else as SSE. Subclasses say which feed."""

    text_records: TextRecords = "json"
    hidden_kinds: frozenset[str] = frozenset()
    """Records of these kinds are left out."""
    _cursor: Cursor
    _feed: JournalFeed

    async def open_feed(self, *args: str) -> JournalFeed:
        """The feed of this path, or a typed error."""
        raise NotImplementedError

    async def on_client_message(self, message: dict[str, Any]) -> None:
        """A JSON object from a WebSocket client. Raises InvalidRequest for what has no meaning."""
        raise InvalidRequest("this stream takes no messages")

    def check_origin(self, origin: str) -> bool:
        """The server, the only one who can reach the guest, has checked it."""
        return True

    async def get(self, *args: str) -> None:
        self._feed = await self.open_feed(*args)
        self._cursor = self._feed.journal.parse(self._wanted_cursor())
        if self.request.headers.get("Upgrade", "").lower() == "websocket":
            await super().get(*args)
        else:
            await send_sse(self, self._feed, self._cursor, text_records=self.text_records, hidden=self.hidden_kinds)

    def open(self, *_: str) -> None:
        self.set_nodelay(True)
        # Tornado awaits `open` before it reads client messages, so sending is a task; it ends with the feed or
        # connection.
        self._sending = asyncio.create_task(self._send_frames())

    def on_close(self) -> None:
        sending = getattr(self, "_sending", None)
        if sending is not None:
            sending.cancel()

    async def on_message(self, message: str | bytes) -> None:
        try:
            await self.on_client_message(_object(message))
        except ClocheError as error:
            self.close(1008, close_reason(error))

    def _wanted_cursor(self) -> str | None:
        query = self.read_query(StreamQuery)
        return self.request.headers.get("Last-Event-ID") or query.cursor

    async def _send_frames(self) -> None:
        try:
            async for items in self._feed.batches(self._cursor):
                sent = [self._send_frame(item) for item in shown(items, self.hidden_kinds)]
                if sent:
                    await sent[-1]
            self.close(1000)
        except (websocket.WebSocketClosedError, iostream.StreamClosedError):
            return

    def _send_frame(self, item: Record | Gap) -> asyncio.Future[None]:
        """The last one of a batch is awaited; that the others are lost with the connection is no news."""
        written = self.write_message(frame(item, text_records=self.text_records))
        written.add_done_callback(lambda done: done.cancelled() or done.exception())
        return written


async def send_sse(
    handler: Handler,
    feed: JournalFeed,
    cursor: Cursor,
    *,
    text_records: TextRecords,
    hidden: frozenset[str] = frozenset(),
) -> None:
    """Answer with the events from `cursor` on, until the feed has ended or the client has gone."""
    handler.set_header("Content-Type", "text/event-stream")
    handler.set_header("Cache-Control", "no-cache")
    try:
        await handler.flush()
        await _send_batches(feed, cursor, handler.write, handler.flush, text_records, hidden)
    except iostream.StreamClosedError:
        return
    handler.finish()


async def _send_batches(
    feed: JournalFeed,
    cursor: Cursor,
    write: Callable[[bytes], None],
    flush: Callable[[], Awaitable[None]],
    text_records: TextRecords,
    hidden: frozenset[str],
) -> None:
    said_at = time.monotonic()
    while True:
        until_heartbeat = said_at + HEARTBEAT_S - time.monotonic()
        if not await feed.wait_beyond(cursor, max(0.0, until_heartbeat)) or until_heartbeat <= 0:
            write(_HEARTBEAT)
            await flush()
            said_at = time.monotonic()
            continue
        items = feed.journal.read(cursor)
        if not items:
            return
        cursor = items[-1].cursor
        if seen := shown(items, hidden):
            write(sse_chunk(seen, text_records=text_records))
            await flush()
            said_at = time.monotonic()
        else:
            await asyncio.sleep(0)


def shown(items: Sequence[Record | Gap], hidden: frozenset[str]) -> Sequence[Record | Gap]:
    """`items` without the records of hidden kinds; gaps stay."""
    return [item for item in items if not isinstance(item, Record) or item.kind not in hidden] if hidden else items


def sse_chunk(items: Sequence[Record | Gap], *, text_records: TextRecords) -> bytes:
    """Many records as one piece of an event stream."""
    lines: list[bytes] = []
    for item in items:
        lines += (b"id: ", str(item.cursor).encode(), b"\nevent: ", event_type(item).encode(), b"\ndata: ")
        lines += (event_json(item, text_records=text_records), b"\n\n")
    return b"".join(lines)


def frame(item: Record | Gap, *, text_records: TextRecords) -> bytes:
    """One record as the JSON of an Event."""
    head = json.dumps({"type": event_type(item), "cursor": str(item.cursor)})
    return head[:-1].encode() + b', "data": ' + event_json(item, text_records=text_records) + b"}"


def close_reason(error: ClocheError) -> str:
    """As much of the error body as fits into a close frame: code and message, as JSON."""
    message = error.message
    while True:
        text = json.dumps({"code": error.code, "message": message})
        if len(text.encode()) <= _CLOSE_REASON_BYTES:
            return text
        message = message[: len(message) * 3 // 4]


def read_message(model: type[Model], message: dict[str, Any]) -> Any:
    """A client message as a model.

    Raises:
        InvalidRequest
    """
    try:
        return model.model_validate(message)
    except ValidationError as error:
        raise invalid(error) from None


def _object(message: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        raise InvalidRequest("a message must be JSON text") from None
    if not isinstance(value, dict):
        raise InvalidRequest("a message must be a JSON object")
    return value
