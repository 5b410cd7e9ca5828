"""The routes of the life of a sandbox: part of the one table in `cloche_server.routes`."""

from __future__ import annotations

from typing import Final

from cloche.errors import (
    ClocheError,
    Conflict,
    DriverUnavailable,
    LimitReached,
    SandboxNotRunning,
    SandboxStartFailed,
    SandboxUnreachable,
    SnapshotFailed,
    UnsupportedCapability,
)
from cloche.models import Role, StateChange
from cloche_server.api import lifecycle
from cloche_server.metrics import Operation
from cloche_server.routing import Act, Route

_S: Final = "/v1/sandboxes/{sandbox_id}"
_EVERY: Final = (Conflict, SandboxNotRunning)
_SAVING: Final = (UnsupportedCapability, SnapshotFailed, SandboxUnreachable)


def _change(
    what: str, summary: str, act: Act, own_errors: tuple[type[ClocheError], ...], timed: Operation | None = None
) -> Route:
    return Route(
        "POST",
        f"{_S}/{what}",
        f"{what}_sandbox",
        summary,
        "lifecycle",
        {200: StateChange},
        act,
        role=Role.MEMBER,
        own_errors=(*_EVERY, *own_errors),
        timed=timed,
    )


LIFECYCLE_ROUTES: Final = [
    _change("pause", "Freeze a sandbox in RAM", lifecycle.pause, (UnsupportedCapability,), "pause"),
    _change("suspend", "Write a sandbox to disk, memory included", lifecycle.suspend, _SAVING, "suspend"),
    _change("stop", "End what runs in a sandbox and keep its files", lifecycle.stop, _SAVING, "stop"),
    _change(
        "resume",
        "Wake a paused, suspended or stopped sandbox",
        lifecycle.resume,
        (LimitReached, SandboxStartFailed, DriverUnavailable),
    ),
]
