"""Every error Cloche raises, and the one list of codes it sends.

The tree::

    ClocheError
    ├── RequestError               the caller's mistake; repeating the same call fails again
    │   ├── InvalidRequest         invalid_request (400): not JSON, wrong types, unknown fields, bad values
    │   ├── BodyTooLarge           body_too_large (413)
    │   ├── Unauthenticated        unauthenticated (401)
    │   ├── Forbidden              forbidden (403)
    │   ├── NotFound               not_found (404)
    │   ├── MethodNotAllowed       method_not_allowed (405)
    │   ├── Conflict               conflict (409)
    │   ├── Gone                   gone (410): it existed and was deleted, or was dropped by a documented bound
    │   ├── LimitReached           limit_reached (429)
    │   ├── BadArchive             bad_archive (400): a tar stream that is broken or tries what it must not
    │   ├── PreconditionFailed     precondition_failed (412): If-Match or If-None-Match
    │   ├── RangeNotSatisfiable    range_not_satisfiable (416)
    │   ├── TemplateBuildFailed    template_build_failed (422): a step of the build failed; details.log is its end
    │   ├── ProcessStartFailed     process_start_failed (422): the program or its directory cannot be used
    │   └── CursorError
    │       ├── MalformedCursor    malformed_cursor (400)
    │       ├── ForeignCursor      foreign_cursor (409): of another epoch
    │       └── CursorBeyondHead   cursor_beyond_head (409)
    ├── StateError                 right call, wrong moment
    │   ├── SandboxNotRunning      sandbox_not_running (409)
    │   ├── SnapshotBroken         snapshot_broken (409): its content is not what was saved; it cannot be used
    │   ├── ContextDead            context_dead (409)
    │   ├── ProcessEnded           process_ended (409): it ended before what was waited for
    │   └── Stale                  stale (409): the handle belongs to an earlier life
    ├── FileError                  what the file system of the sandbox answered
    │   ├── PermissionDenied       permission_denied (403)
    │   ├── IsDirectory            is_directory (409)
    │   ├── NotDirectory           not_directory (409)
    │   ├── NotRegularFile         not_regular_file (409): a device, FIFO or socket
    │   ├── AlreadyExists          already_exists (409)
    │   ├── NotEmpty               not_empty (409)
    │   ├── NoSpace                no_space (507)
    │   └── FileFailed             file_failed (409): anything else; details.errno names it
    ├── GitFailed                  git_failed (409): details.reason says why
    └── ServiceError               ours, or the sandbox's
        ├── SandboxStartFailed     sandbox_start_failed (503)
        ├── SnapshotFailed         snapshot_failed (503): nothing was saved; the sandbox goes on as it was
        ├── ContextStartFailed     context_start_failed (503): the kernel of a context did not start
        ├── PortClosed             port_closed (503): nothing listens on that port of the sandbox (yet)
        ├── SandboxUnreachable     sandbox_unreachable (503): the guest did not answer within a named bound
        ├── GuestFault             guest_fault (502): the guest answered with something it must not say
        ├── DriverUnavailable      driver_unavailable (503)
        ├── UnsupportedCapability  unsupported_capability (409)
        ├── WaitTimeout            wait_timeout (408): a bounded wait of the client ended
        ├── ConnectionFailed       connection_failed (503): the client could not reach the server
        ├── StorageFull            storage_full (507): the disk of the server's machine is full
        └── InternalError          internal (500): a defect in Cloche

On the wire an error is `ErrorBody`: ``{code, message, hint, retryable, details, request_id}``. ``details`` holds values
a program can use; its shape is documented with each code in docs/errors.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import BaseModel, ConfigDict, JsonValue


class ErrorBody(BaseModel):
    """The JSON form of every error, in responses and in streams."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    code: str
    message: str
    hint: str | None = None
    retryable: bool = False
    details: dict[str, JsonValue] = {}
    request_id: str | None = None


class ClocheError(Exception):
    """Root of all. ``message`` says what happened, with values; ``hint`` says what to do."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        details: Mapping[str, JsonValue] | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, JsonValue] = dict(details or {})
        self.request_id = request_id

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} ({self.hint})"

    def to_body(self, request_id: str | None = None) -> ErrorBody:
        """The wire form; ``request_id`` wins over the one the error came with."""
        return ErrorBody(
            code=self.code,
            message=self.message,
            hint=self.hint,
            retryable=self.retryable,
            details=self.details,
            request_id=request_id or self.request_id,
        )


class RequestError(ClocheError):
    """The caller's mistake."""

    code, status = "invalid_request", 400


class InvalidRequest(RequestError):
    """Not JSON, wrong types, unknown fields or values out of range. ``details.errors`` lists ``{field, problem}``."""


class BodyTooLarge(RequestError):
    """The request body is over ``details.limit_bytes``."""

    code, status = "body_too_large", 413


class Unauthenticated(RequestError):
    """No key, an unknown key or a revoked one."""

    code, status = "unauthenticated", 401


class Forbidden(RequestError):
    """The key is good, but its role or owner does not allow this, or Origin or Host is not allowed."""

    code, status = "forbidden", 403


class NotFound(RequestError):
    """No such object for this owner. ``details.kind`` and ``details.id`` name it."""

    code, status = "not_found", 404


class MethodNotAllowed(RequestError):
    """The path exists, but not with this method. ``details.allowed`` lists the methods."""

    code, status = "method_not_allowed", 405


class Conflict(RequestError):
    """It clashes with what is there: a name in use, an idempotency key reused with another body."""

    code, status = "conflict", 409


class Gone(RequestError):
    """It existed and was deleted, or its record was dropped by a documented bound."""

    code, status = "gone", 410


class LimitReached(RequestError):
    """A documented limit is full; ``details.limit`` is its value. Free something, then try again."""

    code, status, retryable = "limit_reached", 429, True


class ProcessStartFailed(RequestError):
    """The program did not start. ``details.reason``: ``not_found``, ``not_executable``, ``bad_interpreter``, ``bad_cwd``,
    ``too_large``, ``not_allowed`` (root without sudo) or ``other``; ``details.field`` and ``details.path`` say of what."""

    code, status = "process_start_failed", 422


class TemplateBuildFailed(RequestError):
    """A step of a template's build failed. ``details``: ``template``, ``version``, ``step`` (setup, context, service or
    snapshot) and ``log``, the end of what was printed."""

    code, status = "template_build_failed", 422


class CursorError(RequestError):
    """A cursor that cannot be used. Start again without one to read from the oldest record kept."""


class MalformedCursor(CursorError):
    """Not a cursor of ours."""

    code, status = "malformed_cursor", 400


class ForeignCursor(CursorError):
    """A cursor of another epoch: the journal it belongs to ended."""

    code, status = "foreign_cursor", 409


class CursorBeyondHead(CursorError):
    """A cursor this journal has not reached."""

    code, status = "cursor_beyond_head", 409


class BadArchive(RequestError):
    """The tar stream is broken, or has a member that is refused: ``details.member``, ``details.problem``."""

    code, status = "bad_archive", 400


class PreconditionFailed(RequestError):
    """If-Match or If-None-Match did not hold; nothing was changed. ``details.etag`` is the present one, null: no file."""

    code, status = "precondition_failed", 412


class RangeNotSatisfiable(RequestError):
    """The range lies behind the end of the file, which has ``details.size`` bytes."""

    code, status = "range_not_satisfiable", 416


class FileError(ClocheError):
    """What the sandbox' file system answered. ``details.path`` is the path as it was given, ``details.errno`` a name."""

    code, status = "file_failed", 409


class PermissionDenied(FileError):
    """The user who was asked for (``details.user``) may not do that."""

    code, status = "permission_denied", 403


class IsDirectory(FileError):
    """A directory where a file is needed."""

    code, status = "is_directory", 409


class NotDirectory(FileError):
    """Something else where a directory is needed."""

    code, status = "not_directory", 409


class NotRegularFile(FileError):
    """A device, FIFO or socket: it has no content to read, replace or copy."""

    code, status = "not_regular_file", 409


class AlreadyExists(FileError):
    """Something has this path already."""

    code, status = "already_exists", 409


class NotEmpty(FileError):
    """A directory that is not empty."""

    code, status = "not_empty", 409


class NoSpace(FileError):
    """The disk (or a quota) of the sandbox is full. A file that was being replaced is as it was."""

    code, status = "no_space", 507


class FileFailed(FileError):
    """Anything else; ``details.errno`` names it."""

    code, status = "file_failed", 409


class GitFailed(ClocheError):
    """``details.reason``: ``authentication``, ``not_found``, ``branch_not_found``, ``network``, ``timeout`` or ``other``;
    ``details.output`` has git's last words."""

    code, status = "git_failed", 409


class StateError(ClocheError):
    """The right call at the wrong moment."""

    code, status = "conflict", 409


class SandboxNotRunning(StateError):
    """``details.state`` says what it is instead, ``details.failure`` why."""

    code, status = "sandbox_not_running", 409


class SnapshotBroken(StateError):
    """The content of a snapshot is not what was saved. It is refused for good; ``details.file`` says where."""

    code, status = "snapshot_broken", 409


class ContextDead(StateError):
    """The context's kernel ended and its restart policy is ``never``. Restart or delete the context."""

    code, status = "context_dead", 409


class ProcessEnded(StateError):
    """The process ended before the wait was over. ``details.process_id``, ``details.state``, ``details.exit`` say how, and
    ``details.stderr`` has its last words."""

    code, status = "process_ended", 409


class Stale(StateError):
    """The handle belongs to an earlier life of the object."""

    code, status = "stale", 409


class ServiceError(ClocheError):
    """Ours, or the sandbox's; not the caller's."""


class SandboxStartFailed(ServiceError):
    """The runtime could not start the sandbox; ``details.output`` has its own words. Nothing is left behind."""

    code, status, retryable = "sandbox_start_failed", 503, True


class SnapshotFailed(ServiceError):
    """Nothing was saved and nothing is left of the attempt; the sandbox goes on as it was. ``details.output`` has the
    runtime's own words."""

    code, status, retryable = "snapshot_failed", 503, True


class ContextStartFailed(ServiceError):
    """The kernel of a context did not start; ``details.failure`` says why, with its last words."""

    code, status, retryable = "context_start_failed", 503, True


class SandboxUnreachable(ServiceError):
    """The guest did not answer within ``details.bound_s`` seconds."""

    code, status, retryable = "sandbox_unreachable", 503, True


class PortClosed(ServiceError):
    """Nothing listens on ``details.port`` of the sandbox. It may in a moment."""

    code, status, retryable = "port_closed", 503, True


class GuestFault(ServiceError):
    """The guest (untrusted) answered with something it must not say."""

    code, status = "guest_fault", 502


class DriverUnavailable(ServiceError):
    """The driver asked for does not pass its self-test; ``details.why`` and the hint say more."""

    code, status = "driver_unavailable", 503


class UnsupportedCapability(ServiceError):
    """The driver of this sandbox cannot do that."""

    code, status = "unsupported_capability", 409


class WaitTimeout(ServiceError):
    """A bounded wait ended first. Nothing was stopped by it; ``details.bound_s`` is the bound."""

    code, status, retryable = "wait_timeout", 408, True


class ConnectionFailed(ServiceError):
    """The server could not be reached, or the connection was lost and not regained in time."""

    code, status, retryable = "connection_failed", 503, True


class StorageFull(ServiceError):
    """The disk of the server's machine is full. Nothing of this call was kept; what runs goes on."""

    code, status, retryable = "storage_full", 507, True


class InternalError(ServiceError):
    """A defect in Cloche. The request id finds it in the server's log."""


ERRORS: Final[Mapping[str, type[ClocheError]]] = {
    cls.code: cls
    for cls in (
        InvalidRequest,
        BodyTooLarge,
        Unauthenticated,
        Forbidden,
        NotFound,
        MethodNotAllowed,
        Conflict,
        Gone,
        LimitReached,
        ProcessStartFailed,
        TemplateBuildFailed,
        BadArchive,
        PreconditionFailed,
        RangeNotSatisfiable,
        PermissionDenied,
        IsDirectory,
        NotDirectory,
        NotRegularFile,
        AlreadyExists,
        NotEmpty,
        NoSpace,
        FileFailed,
        GitFailed,
        MalformedCursor,
        ForeignCursor,
        CursorBeyondHead,
        SandboxNotRunning,
        SnapshotBroken,
        ContextDead,
        ProcessEnded,
        Stale,
        SandboxStartFailed,
        SnapshotFailed,
        ContextStartFailed,
        PortClosed,
        SandboxUnreachable,
        GuestFault,
        DriverUnavailable,
        UnsupportedCapability,
        WaitTimeout,
        ConnectionFailed,
        StorageFull,
        InternalError,
    )
}
"""Code on the wire -> class. A subclass of one of these may share its code."""


def error_from_body(body: ErrorBody) -> ClocheError:
    """The exception a client raises for ``body``; an unknown code (a newer server) becomes a plain `ClocheError`."""
    cls = ERRORS.get(body.code, ClocheError)
    return cls(body.message, hint=body.hint, details=body.details, request_id=body.request_id)
