"""The routes of files and watches: part of the one table in `cloche_server.routes`."""

from __future__ import annotations

from typing import Final

from cloche.errors import (
    AlreadyExists,
    BadArchive,
    ClocheError,
    CursorBeyondHead,
    FileFailed,
    ForeignCursor,
    GitFailed,
    IsDirectory,
    MalformedCursor,
    NoSpace,
    NotDirectory,
    NotEmpty,
    NotRegularFile,
    PermissionDenied,
    PreconditionFailed,
    RangeNotSatisfiable,
    WaitTimeout,
)
from cloche.models import (
    ChangeMode,
    Changes,
    Cloned,
    CopyFile,
    FileInfo,
    FilePage,
    FileSearch,
    GitClone,
    GlobMatches,
    MakeDirectory,
    Model,
    MoveFile,
    Page,
    Removed,
    RemoveFile,
    Role,
    SearchMatches,
    TreeStored,
    Watch,
    WatchCreate,
)
from cloche_server.routing import (
    AppendPath,
    FromCursor,
    GlobPath,
    ListPath,
    OfPath,
    Route,
    Since,
    StatPath,
    Streams,
    TreePath,
    WritePath,
)

_F: Final = "/v1/sandboxes/{sandbox_id}/files"
_W: Final = "/v1/sandboxes/{sandbox_id}/watches"
_ONE: Final = _W + "/{watch_id}"

_LOOK: Final = (PermissionDenied, NotDirectory, FileFailed, WaitTimeout)
_CHANGE: Final = (*_LOOK, IsDirectory, NotRegularFile, AlreadyExists, NotEmpty, NoSpace)

LOOK_S: Final = 45
"""Above the guest's own bound, 30 s, whose error says more."""

CHANGE_S: Final = 620


def _change(
    name: str,
    summary: str,
    body: type[Model],
    answers: dict[int, type[Model]],
    *own_errors: type[ClocheError],
    streams: Streams = Streams.NEVER,
    bound_s: float = CHANGE_S,
    role: Role = Role.MEMBER,
    operation: str | None = None,
) -> Route:
    return Route(
        "POST",
        f"{_F}/{name}",
        operation or f"{name}_file",
        summary,
        "files",
        answers,
        body=body,
        role=role,
        own_errors=(*_CHANGE, *own_errors),
        streams=streams,
        bound_s=bound_s,
        headers=("Accept",) if streams is Streams.ON_REQUEST else (),
    )


_CONTENT: Final = [
    Route(
        "GET",
        f"{_F}/content",
        "read_file",
        "The content of a file, or a range of it",
        "files",
        {200: "application/octet-stream", 206: "application/octet-stream", 304: "application/octet-stream"},
        query=OfPath,
        own_errors=(*_LOOK, IsDirectory, NotRegularFile, RangeNotSatisfiable),
        bound_s=LOOK_S,
        headers=("Range", "If-None-Match"),
        large=True,
    ),
    Route(
        "PUT",
        f"{_F}/content",
        "write_file",
        "Write a file; the body is its content",
        "files",
        {200: FileInfo, 201: FileInfo},
        query=WritePath,
        bytes_body=True,
        role=Role.MEMBER,
        own_errors=(*_CHANGE, PreconditionFailed),
        bound_s=CHANGE_S,
        headers=("If-Match", "If-None-Match"),
        large=True,
    ),
    Route(
        "POST",
        f"{_F}/content",
        "append_file",
        "Add the body to the end of a file",
        "files",
        {200: FileInfo, 201: FileInfo},
        query=AppendPath,
        bytes_body=True,
        role=Role.MEMBER,
        own_errors=_CHANGE,
        bound_s=CHANGE_S,
        large=True,
    ),
    Route(
        "GET",
        f"{_F}/tree",
        "download_tree",
        "A directory and all below it, as a tar stream",
        "files",
        {200: "application/x-tar"},
        query=OfPath,
        own_errors=_LOOK,
        bound_s=LOOK_S,
        large=True,
    ),
    Route(
        "PUT",
        f"{_F}/tree",
        "upload_tree",
        "Unpack a tar stream into a directory",
        "files",
        {200: TreeStored},
        query=TreePath,
        bytes_body=True,
        role=Role.MEMBER,
        own_errors=(*_CHANGE, BadArchive),
        bound_s=CHANGE_S,
        large=True,
    ),
]

_LOOKING: Final = [
    Route(
        "GET",
        f"{_F}/stat",
        "stat_file",
        "What lstat says of a path",
        "files",
        {200: FileInfo},
        query=StatPath,
        own_errors=_LOOK,
        bound_s=LOOK_S,
    ),
    Route(
        "GET",
        f"{_F}/list",
        "list_files",
        "A directory, or all below it, in pages",
        "files",
        {200: FilePage},
        query=ListPath,
        own_errors=_LOOK,
        bound_s=LOOK_S,
    ),
    Route(
        "GET",
        f"{_F}/glob",
        "glob_files",
        "Paths that fit a pattern",
        "files",
        {200: GlobMatches},
        query=GlobPath,
        own_errors=_LOOK,
        bound_s=CHANGE_S,
    ),
]

_CHANGING: Final = [
    _change(
        "search",
        "Lines that fit a text or a regular expression",
        FileSearch,
        {200: SearchMatches},
        bound_s=110,
        role=Role.VIEWER,
        operation="search_files",
    ),
    _change("mkdir", "Make a directory", MakeDirectory, {201: FileInfo}, operation="make_directory"),
    _change("move", "Move or rename", MoveFile, {200: FileInfo}),
    _change("copy", "Copy a file or a tree", CopyFile, {201: FileInfo}),
    _change("remove", "Remove a file or a tree", RemoveFile, {200: Removed}),
    _change("chmod", "Change permission bits", ChangeMode, {200: FileInfo}),
    _change(
        "clone",
        "git clone; answers at its end, or streams its progress",
        GitClone,
        {201: Cloned},
        GitFailed,
        streams=Streams.ON_REQUEST,
        bound_s=3660,
        operation="git_clone",
    ),
]

_WATCHES: Final = [
    Route(
        "POST",
        _W,
        "create_watch",
        "Watch a directory; answers when everything is watched",
        "watches",
        {201: Watch},
        body=WatchCreate,
        role=Role.MEMBER,
        own_errors=_LOOK,
        bound_s=150,
    ),
    Route("GET", _W, "list_watches", "Watches, newest first", "watches", {200: Page[Watch]}),
    Route("GET", _ONE, "get_watch", "One watch", "watches", {200: Watch}),
    Route("DELETE", _ONE, "delete_watch", "End a watch", "watches", {200: Watch}, role=Role.MEMBER),
    Route(
        "GET",
        _ONE + "/events",
        "watch_events",
        "What changes, as a stream",
        "watches",
        {200: "text/event-stream"},
        query=FromCursor,
        streams=Streams.ALWAYS,
        own_errors=(MalformedCursor, ForeignCursor, CursorBeyondHead),
        headers=("Last-Event-ID",),
    ),
    Route(
        "GET",
        _ONE + "/changes",
        "watch_changes",
        "What changed behind a cursor: nothing, this, or more than can be said",
        "watches",
        {200: Changes},
        query=Since,
        own_errors=(MalformedCursor,),
    ),
]

FILE_ROUTES: Final[tuple[Route, ...]] = (*_CONTENT, *_LOOKING, *_CHANGING, *_WATCHES)
