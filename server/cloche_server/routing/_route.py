"""What a route is, and what goes in and out of one."""

from __future__ import annotations

import http
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from pydantic import BaseModel

from cloche.errors import (
    BodyTooLarge,
    ClocheError,
    Conflict,
    ConnectionFailed,
    ContextDead,
    ContextStartFailed,
    DriverUnavailable,
    Forbidden,
    Gone,
    GuestFault,
    InternalError,
    InvalidRequest,
    LimitReached,
    NotFound,
    SandboxNotRunning,
    SandboxStartFailed,
    SandboxUnreachable,
    Stale,
    StorageFull,
    Unauthenticated,
)
from cloche.models import Model, Role
from cloche_server.auth import Principal
from cloche_server.metrics import Operation
from cloche_server.routing._params import NoQuery, Query

if TYPE_CHECKING:
    from cloche_server.services import Services


@dataclass(frozen=True, slots=True)
class Call:
    """One request, checked: who asks, and what for. ``path`` has the values of the path's parameters."""

    request_id: str
    principal: Principal
    path: Mapping[str, str]
    query: Query
    body: Model | None
    content: bytes = b""
    """The body of a route that takes bytes."""
    conditions: tuple[tuple[str, str], ...] = ()
    """Headers that the guest is to see, as `Route.headers` of a large route has them."""
    idempotency_key: str | None = None
    wants_events: bool = False
    last_event_id: str | None = None
    host: str = ""
    secure: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """``body`` is a model, bytes that are ready to be sent, or the parts of a long body; those are closed at the end."""

    body: BaseModel | bytes | AsyncGenerator[bytes, None]
    status: int = http.HTTPStatus.OK
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Act = Callable[["Services", Call], Awaitable[Reply]]


class BodySink(Protocol):
    """Takes a body of any size part by part. Closed when it does not come to its `reply`."""

    async def send(self, data: bytes, /) -> bool:
        """True: go on. Raises what it refuses the body with."""

    async def reply(self) -> Reply:
        """After the last part."""

    def close(self) -> None:
        """Undo what is half done. Idempotent."""


OpenSink = Callable[["Services", Call], Awaitable[BodySink]]


class Streams(StrEnum):
    """NEVER: one answer. ON_REQUEST: SSE with ``Accept: text/event-stream``. ALWAYS: SSE, or WebSocket. OWN: SSE of the
    server itself. SOCKET: the WebSocket of a terminal; the guest is told whether the client may write."""

    NEVER = "never"
    ON_REQUEST = "on_request"
    ALWAYS = "always"
    OWN = "own"
    SOCKET = "socket"


_EVERY_ROUTE: Final = (InvalidRequest, Forbidden, InternalError, StorageFull, ConnectionFailed)
_WITH_KEY: Final = (Unauthenticated,)
_WITH_BODY: Final = (BodyTooLarge,)
_ON_SANDBOX: Final = (NotFound, Gone)
_IN_GUEST: Final = (SandboxNotRunning, SandboxUnreachable, GuestFault, LimitReached, Stale)
_WAKING: Final = (Conflict, SandboxStartFailed, DriverUnavailable)
_ON_CONTEXT: Final = (ContextDead, ContextStartFailed)
"""Any call may be the first use of the default context, which starts it."""


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. ``act`` None: the call is passed on to the guest of ``{sandbox_id}``.

    ``role`` None: no key is needed. ``bound_s``: seconds the guest has to begin its answer, besides ``wait_s``.
    """

    method: str
    path: str
    operation: str
    summary: str
    tag: str
    answers: Mapping[int, type[BaseModel] | str]
    """Status -> model, or the content type of something that is not JSON."""
    act: Act | None = None
    sink: OpenSink | None = None
    """In place of ``act``: the body is of any size, and goes to the server itself as it comes."""
    body: type[Model] | None = None
    bytes_body: bool = False
    """The body is bytes, passed on as they are."""
    query: type[Query] = NoQuery
    role: Role | None = Role.VIEWER
    own_errors: tuple[type[ClocheError], ...] = ()
    streams: Streams = Streams.NEVER
    bound_s: float = 15
    headers: tuple[str, ...] = ()
    """Request headers with a meaning here."""
    large: bool = False
    """Bodies of any size, both ways, passed on as they come."""
    shareable: bool = False
    """The link to a terminal opens it, too."""
    timed: Operation | None = None
    """Under which name the time until a whole answer (200, 201) is observed."""

    @property
    def to_guest(self) -> bool:
        return self.act is None and self.sink is None

    @property
    def looks(self) -> bool:
        """It only looks into a sandbox: it neither wakes it nor counts as activity. Files are work, and so is attaching to
        a terminal; other GETs, event streams above all, are what pages and monitors repeat for ever."""
        if self.method != "GET" or self.streams is Streams.SOCKET:
            return False
        return not self.path.startswith("/v1/sandboxes/{sandbox_id}/files")

    @property
    def raw_type(self) -> str | None:
        """The content type of an answer that is neither JSON nor a stream of events."""
        answer = self.answers.get(http.HTTPStatus.OK)
        return answer if isinstance(answer, str) and self.streams is Streams.NEVER else None

    @property
    def errors(self) -> tuple[type[ClocheError], ...]:
        """Everything this route can answer besides `answers`, each once."""
        found = [
            *_EVERY_ROUTE,
            *(_WITH_KEY if self.role is not None else ()),
            *(_WITH_BODY if self.method in {"POST", "PATCH", "PUT", "DELETE"} else ()),
            *(_ON_SANDBOX if "{sandbox_id}" in self.path else ()),
            *(_IN_GUEST if self.to_guest else ()),
            *(_WAKING if self.to_guest and not self.looks else ()),
            *(_ON_CONTEXT if "{context_id}" in self.path else ()),
            *self.own_errors,
        ]
        return tuple(dict.fromkeys(found))

    @property
    def guest_path(self) -> str:
        """The same path without the sandbox."""
        return "/v1" + self.path.removeprefix("/v1/sandboxes/{sandbox_id}")
