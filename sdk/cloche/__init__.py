"""Cloche: client library and the vocabulary shared by client, server and guest.

    from cloche import Sandbox

    with Sandbox.create() as sandbox:
        sandbox.run("import pandas as pd; df = pd.DataFrame({'x': [1, 2, 3]})")
        print(sandbox.run("df.x.sum()").text)

`Sandbox` and `AsyncSandbox` are described in docs/sdk.md, the errors in `cloche.errors`, the JSON in `cloche.models`.

Names are imported on first use (PEP 562): the guest imports `cloche.models` for every kernel's sake and must not load
an HTTP client for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cloche._attachment import AsyncAttachment, Attachment, TerminalEnded, TerminalGap
    from cloche._client import AsyncClient, AsyncKeys, Client, Keys
    from cloche._context import AsyncContext, Context
    from cloche._contexts import AsyncContexts, Contexts
    from cloche._exec import ExecFailed, ExecResult
    from cloche._files import AsyncFiles, AsyncFileWatch, ChangeSet, FileChange, Files, FileWatch, TreeDownload
    from cloche._forks import AsyncForkResult, ForkResult
    from cloche._images import ImageOutput
    from cloche._previews import AsyncPreview, Preview
    from cloche._process import AsyncProcess, Output, Process, output_bytes
    from cloche._processes import AsyncProcesses, AsyncServices, Processes, Services
    from cloche._result import RunFailed, RunResult
    from cloche._run_handle import AsyncRunHandle, RunHandle
    from cloche._sandbox import AsyncSandbox, Sandbox
    from cloche._snapshots import AsyncSnapshots, Snapshots
    from cloche._templates import AsyncIntents, AsyncPools, AsyncTemplates, Intents, Pools, Templates
    from cloche._terminals import AsyncTerminal, AsyncTerminals, Terminal, Terminals
    from cloche._volumes import AsyncVolumes, Volumes
    from cloche.errors import (
        AlreadyExists,
        BadArchive,
        BodyTooLarge,
        ClocheError,
        Conflict,
        ConnectionFailed,
        ContextDead,
        ContextStartFailed,
        CursorBeyondHead,
        CursorError,
        DriverUnavailable,
        FileError,
        FileFailed,
        Forbidden,
        ForeignCursor,
        GitFailed,
        Gone,
        GuestFault,
        InternalError,
        InvalidRequest,
        IsDirectory,
        LimitReached,
        MalformedCursor,
        MethodNotAllowed,
        NoSpace,
        NotDirectory,
        NotEmpty,
        NotFound,
        NotRegularFile,
        PermissionDenied,
        PortClosed,
        PreconditionFailed,
        ProcessEnded,
        ProcessStartFailed,
        RangeNotSatisfiable,
        RequestError,
        SandboxNotRunning,
        SandboxStartFailed,
        SandboxUnreachable,
        ServiceError,
        SnapshotBroken,
        SnapshotFailed,
        Stale,
        StateError,
        StorageFull,
        TemplateBuildFailed,
        Unauthenticated,
        UnsupportedCapability,
        WaitTimeout,
    )
    from cloche.models import Event, LifecyclePolicy, Resources, Retention, RunStatus

_HOME: Final = {
    **dict.fromkeys(("AsyncAttachment", "Attachment", "TerminalEnded", "TerminalGap"), "cloche._attachment"),
    **dict.fromkeys(("AsyncTerminal", "AsyncTerminals", "Terminal", "Terminals"), "cloche._terminals"),
    **dict.fromkeys(("AsyncClient", "AsyncKeys", "Client", "Keys"), "cloche._client"),
    **dict.fromkeys(("AsyncContext", "Context"), "cloche._context"),
    **dict.fromkeys(
        ("AsyncFileWatch", "AsyncFiles", "ChangeSet", "FileChange", "FileWatch", "Files", "TreeDownload"),
        "cloche._files",
    ),
    **dict.fromkeys(("ImageOutput",), "cloche._images"),
    **dict.fromkeys(("ExecFailed", "ExecResult"), "cloche._exec"),
    **dict.fromkeys(("AsyncProcess", "Output", "Process", "output_bytes"), "cloche._process"),
    **dict.fromkeys(("AsyncProcesses", "AsyncServices", "Processes", "Services"), "cloche._processes"),
    **dict.fromkeys(("RunFailed", "RunResult"), "cloche._result"),
    **dict.fromkeys(("AsyncRunHandle", "RunHandle"), "cloche._run_handle"),
    **dict.fromkeys(("AsyncContexts", "Contexts"), "cloche._contexts"),
    **dict.fromkeys(("AsyncSandbox", "Sandbox"), "cloche._sandbox"),
    **dict.fromkeys(("AsyncPreview", "Preview"), "cloche._previews"),
    **dict.fromkeys(("AsyncVolumes", "Volumes"), "cloche._volumes"),
    **dict.fromkeys(("AsyncForkResult", "ForkResult"), "cloche._forks"),
    **dict.fromkeys(("AsyncSnapshots", "Snapshots"), "cloche._snapshots"),
    **dict.fromkeys(
        ("AsyncIntents", "AsyncPools", "AsyncTemplates", "Intents", "Pools", "Templates"), "cloche._templates"
    ),
    **dict.fromkeys(("Event", "LifecyclePolicy", "Resources", "Retention", "RunStatus"), "cloche.models"),
}
"""Public name -> module. Every other public name is an error."""

__all__ = [
    "AlreadyExists",
    "AsyncAttachment",
    "AsyncClient",
    "AsyncContext",
    "AsyncContexts",
    "AsyncFileWatch",
    "AsyncFiles",
    "AsyncForkResult",
    "AsyncIntents",
    "AsyncKeys",
    "AsyncPools",
    "AsyncPreview",
    "AsyncProcess",
    "AsyncProcesses",
    "AsyncRunHandle",
    "AsyncSandbox",
    "AsyncServices",
    "AsyncSnapshots",
    "AsyncTemplates",
    "AsyncTerminal",
    "AsyncTerminals",
    "AsyncVolumes",
    "Attachment",
    "BadArchive",
    "BodyTooLarge",
    "ChangeSet",
    "Client",
    "ClocheError",
    "Conflict",
    "ConnectionFailed",
    "Context",
    "ContextDead",
    "ContextStartFailed",
    "Contexts",
    "CursorBeyondHead",
    "CursorError",
    "DriverUnavailable",
    "Event",
    "ExecFailed",
    "ExecResult",
    "FileChange",
    "FileError",
    "FileFailed",
    "FileWatch",
    "Files",
    "Forbidden",
    "ForeignCursor",
    "ForkResult",
    "GitFailed",
    "Gone",
    "GuestFault",
    "ImageOutput",
    "Intents",
    "InternalError",
    "InvalidRequest",
    "IsDirectory",
    "Keys",
    "LifecyclePolicy",
    "LimitReached",
    "MalformedCursor",
    "MethodNotAllowed",
    "NoSpace",
    "NotDirectory",
    "NotEmpty",
    "NotFound",
    "NotRegularFile",
    "Output",
    "PermissionDenied",
    "Pools",
    "PortClosed",
    "PreconditionFailed",
    "Preview",
    "Process",
    "ProcessEnded",
    "ProcessStartFailed",
    "Processes",
    "RangeNotSatisfiable",
    "RequestError",
    "Resources",
    "Retention",
    "RunFailed",
    "RunHandle",
    "RunResult",
    "RunStatus",
    "Sandbox",
    "SandboxNotRunning",
    "SandboxStartFailed",
    "SandboxUnreachable",
    "ServiceError",
    "Services",
    "SnapshotBroken",
    "SnapshotFailed",
    "Snapshots",
    "Stale",
    "StateError",
    "StorageFull",
    "TemplateBuildFailed",
    "Templates",
    "Terminal",
    "TerminalEnded",
    "TerminalGap",
    "Terminals",
    "TreeDownload",
    "Unauthenticated",
    "UnsupportedCapability",
    "Volumes",
    "WaitTimeout",
    "output_bytes",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'cloche' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME.get(name, "cloche.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
