"""Tail: a reader of one event stream that survives lost connections.

Pure: frames in, events out; no socket, no clock. The rules:

- The tail remembers the cursor of the last event it gave out and asks for what follows it, so no event is given twice
  and none is left out. What the journal itself dropped comes as one ``gap`` event.
- A connection that breaks, falls silent or ends early is opened again after a pause (`cloche._patience`); an event that
  arrives starts the patience afresh. An error that is not a matter of the connection is raised.
- A sandbox that is put to rest cuts its streams. One that was open waits, within the same patience, for the sandbox to run
  again, and does not wake it; one that is opened while the sandbox rests is refused at once.
- The stream that answers a POST (`OneStream`) is read once; there is nothing to come back to.
- A run's stream is over after ``finished``; a context's stream goes on until the context is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue, TypeAdapter, ValidationError

from cloche._answers import Answer, error_of
from cloche._calls import Query
from cloche._patience import Patience
from cloche.errors import (
    ClocheError,
    ConnectionFailed,
    GuestFault,
    SandboxNotRunning,
    ServiceError,
    StateError,
)
from cloche.models import Event, SandboxState

SILENCE_S: Final = 40.0
"""The server sends a heartbeat after 15 s of silence; two missing ones mean a dead connection."""

WAKES_UP: Final = frozenset(
    {
        *(SandboxState.PAUSED, SandboxState.SUSPENDING, SandboxState.SUSPENDED, SandboxState.RESUMING),
        SandboxState.RESTORING,
    }
)
"""States in which what was begun in a sandbox may go on, or is soon known to be gone."""

_DATA: Final = TypeAdapter(dict[str, JsonValue])


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as SSE carries it."""

    event: str
    data: str
    id: str


class Tail:
    """Where one reader of one stream is."""

    def __init__(
        self, path: str, *, cursor: str | None, last_type: str | None, patience: Patience, params: Query = ()
    ) -> None:
        self.path = path
        self.body: bytes | None = None
        """What the stream is opened with, by POST; None: by GET."""
        self.done = False
        self.opened = False
        """Whether the server ever answered with the stream."""
        self._cursor = cursor
        self._last_type = last_type
        self._params = params
        self._patience = patience
        self._delays: Iterator[float] = patience.delays()

    @property
    def cursor(self) -> str | None:
        """Behind the last event given out; None before the first."""
        return self._cursor

    @property
    def query(self) -> Query:
        """What to open the stream with."""
        return (*self._params, ("cursor", self._cursor)) if self._cursor is not None else self._params

    def take(self, frame: Frame) -> Event | None:
        """The event of ``frame``; None for a frame without one (a heartbeat).

        :raises ClocheError: the frame says that the stream failed.
        """
        if not frame.data:  # the SSE rule, which httpx-sse leaves to its users
            return None
        if frame.event == "failure":
            raise error_of(Answer(status=500, body=frame.data.encode()))
        event = Event(type=frame.event, cursor=frame.id, data=_data_of(frame))
        self._cursor = event.cursor
        self._delays = self._patience.delays()
        self.done = event.type == self._last_type
        return event

    def lost(self, error: ClocheError | None) -> float:
        """Seconds to pause before the stream is opened again. ``error``: why it broke; None when it just ended.

        :raises ClocheError: ``error`` is not one that a new connection can cure, or patience is over.
        """
        failure = error or ConnectionFailed("the event stream ended early", details={"path": self.path})
        if not (_curable(failure) or (self.opened and rests(failure))):
            raise failure
        delay = next(self._delays, None)
        if delay is None:
            raise failure
        return delay


class OneStream(Tail):
    """The stream that answers one POST: what it tells of ends with its connection, so it is never opened again."""

    def __init__(self, path: str, body: bytes, *, last_type: str) -> None:
        super().__init__(path, cursor=None, last_type=last_type, patience=Patience(0))
        self.body = body

    def lost(self, error: ClocheError | None) -> float:
        """
        :raises ClocheError: always.
        """
        raise error or ConnectionFailed("the event stream ended early", details={"path": self.path})


def _curable(error: ClocheError) -> bool:
    """Whether a new connection can help. A server this client never reached is not an outage."""
    if isinstance(error, StateError) or not isinstance(error, ServiceError):
        return False
    return error.retryable and error.details.get("reached_before") is not False


def rests(error: ClocheError) -> bool:
    """Whether ``error`` says that the sandbox only rests."""
    return isinstance(error, SandboxNotRunning) and error.details.get("state") in WAKES_UP


def _data_of(frame: Frame) -> dict[str, JsonValue]:
    try:
        return _DATA.validate_json(frame.data)
    except ValidationError as error:
        raise GuestFault(f"the data of a {frame.event!r} event is not a JSON object") from error
