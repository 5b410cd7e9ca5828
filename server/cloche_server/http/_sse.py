"""Server-sent events as a relay sees them: bytes with borders between events. Pure."""

from __future__ import annotations

from cloche.errors import ErrorBody


class EventTail:
    """Remembers whether the bytes so far end at a border: there an event of ours can follow."""

    def __init__(self) -> None:
        self._tail = b"\n\n"

    def feed(self, part: bytes) -> None:
        self._tail = (self._tail + part)[-4:]

    @property
    def between_events(self) -> bool:
        return self._tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))


def failure_event(body: ErrorBody) -> bytes:
    """The event that ends a stream after an error. JSON has no raw newlines, so one data line holds it."""
    return b"event: failure\ndata: " + body.model_dump_json().encode() + b"\n\n"
