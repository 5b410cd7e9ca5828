"""Models: the JSON of the API as types, shared by client, server and guest. Every model rejects unknown fields.

Names are imported on first use (PEP 562), as those of `cloche`: a guest needs a third of them, and a model takes 20 kB and
0.2 ms.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cloche.models._base import (
        ContextId,
        Env,
        KeyId,
        Labels,
        Model,
        Name,
        Page,
        RunId,
        SandboxId,
        Timestamp,
        WatchId,
    )
    from cloche.models.contexts import (
        CompleteReply,
        CompleteRequest,
        Context,
        ContextCreate,
        ContextLimits,
        ContextState,
        History,
        HistoryEntry,
        InspectReply,
        InspectRequest,
        Variable,
        Variables,
    )
    from cloche.models.events import Event
    from cloche.models.failures import Failure
    from cloche.models.files import (
        ChangeMode,
        Cloned,
        CloneProgress,
        CopyFile,
        FileEntry,
        FileInfo,
        FileName,
        FilePage,
        FilePath,
        FileSearch,
        FileUser,
        GitClone,
        GlobMatches,
        GlobPattern,
        MakeDirectory,
        Mode,
        MoveFile,
        OnFile,
        Removed,
        RemoveFile,
        SearchMatch,
        SearchMatches,
        TreeStored,
    )
    from cloche.models.info import DriverReport, Health, Image, ImageList, Info
    from cloche.models.keys import Key, KeyCreate, NewKey, Role
    from cloche.models.lifecycle import LifecyclePolicy, Lifetime, Origin, PolicyAction, SandboxState, StateChange
    from cloche.models.ports import ListeningPort, PortHolder, PortNumber
    from cloche.models.previews import Preview, PreviewCreate, PreviewToken, PreviewTokenCreate, PreviewVisibility
    from cloche.models.processes import (
        CapturedOutput,
        Condition,
        ConditionResult,
        Data,
        ExecCreate,
        ExecResult,
        ExitCondition,
        LogCondition,
        LogMatch,
        PortCondition,
        Process,
        ProcessCreate,
        ProcessExit,
        ProcessId,
        ProcessOutput,
        ProcessSignal,
        ProcessSpec,
        ProcessState,
        ProcessWait,
        RestartPolicy,
        Service,
        ServiceCreate,
        ServiceState,
        StdinReply,
        Tty,
        WaitResult,
    )
    from cloche.models.runs import (
        DisplayOutput,
        ErrorOutput,
        InputReply,
        InputRequest,
        MimeBundle,
        Output,
        Run,
        RunCreate,
        RunError,
        RunList,
        RunState,
        RunStatus,
        RunSummary,
        StreamOutput,
        TruncatedOutput,
    )
    from cloche.models.sandboxes import (
        DriverName,
        Resources,
        Sandbox,
        SandboxCreate,
        SandboxUpdate,
    )
    from cloche.models.snapshots import (
        Compare,
        Comparison,
        FileDifference,
        Fork,
        ForkChild,
        ForkResult,
        Restore,
        Retention,
        Snapshot,
        SnapshotCreate,
        SnapshotId,
        SnapshotNode,
        SnapshotTree,
        VariableDifference,
        VariableValue,
    )
    from cloche.models.templates import (
        Intent,
        IntentCreate,
        Pool,
        PoolCreate,
        PoolStats,
        Template,
        TemplateContext,
        TemplateCreate,
        TemplateLog,
        TemplateRef,
    )
    from cloche.models.usage import Usage
    from cloche.models.volumes import Volume, VolumeAttachment, VolumeCreate, VolumeId
    from cloche.models.watches import Changes, Watch, WatchCreate

_NAMES: Final = {
    "_base": "ContextId Env KeyId Labels Model Name Page RunId SandboxId Timestamp WatchId",
    "contexts": (
        "CompleteReply CompleteRequest Context ContextCreate ContextLimits ContextState History HistoryEntry "
        "InspectReply InspectRequest Variable Variables"
    ),
    "events": "Event",
    "failures": "Failure",
    "files": (
        "ChangeMode Cloned CloneProgress CopyFile FileEntry FileInfo FileName FilePage FilePath FileSearch "
        "FileUser GitClone GlobMatches GlobPattern MakeDirectory Mode MoveFile OnFile Removed RemoveFile "
        "SearchMatch SearchMatches TreeStored"
    ),
    "info": "DriverReport Health Image ImageList Info",
    "keys": "Key KeyCreate NewKey Role",
    "lifecycle": "LifecyclePolicy Lifetime Origin PolicyAction SandboxState StateChange",
    "ports": "ListeningPort PortHolder PortNumber",
    "previews": "Preview PreviewCreate PreviewToken PreviewTokenCreate PreviewVisibility",
    "processes": (
        "CapturedOutput Condition ConditionResult Data ExecCreate ExecResult ExitCondition LogCondition "
        "LogMatch PortCondition Process ProcessCreate ProcessExit ProcessId ProcessOutput ProcessSignal "
        "ProcessSpec ProcessState ProcessWait RestartPolicy Service ServiceCreate ServiceState StdinReply Tty "
        "WaitResult"
    ),
    "runs": (
        "DisplayOutput ErrorOutput InputReply InputRequest MimeBundle Output Run RunCreate RunError RunList "
        "RunState RunStatus RunSummary StreamOutput TruncatedOutput"
    ),
    "sandboxes": "DriverName Resources Sandbox SandboxCreate SandboxUpdate",
    "snapshots": (
        "Compare Comparison FileDifference Fork ForkChild ForkResult Restore Retention Snapshot "
        "SnapshotCreate SnapshotId SnapshotNode SnapshotTree VariableDifference VariableValue"
    ),
    "templates": (
        "Intent IntentCreate Pool PoolCreate PoolStats Template TemplateContext TemplateCreate TemplateLog TemplateRef"
    ),
    "usage": "Usage",
    "volumes": "Volume VolumeAttachment VolumeCreate VolumeId",
    "watches": "Changes Watch WatchCreate",
}
_HOME: Final = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names.split()}
"""Public name -> module."""

__all__ = [
    "CapturedOutput",
    "ChangeMode",
    "Changes",
    "CloneProgress",
    "Cloned",
    "Compare",
    "Comparison",
    "CompleteReply",
    "CompleteRequest",
    "Condition",
    "ConditionResult",
    "Context",
    "ContextCreate",
    "ContextId",
    "ContextLimits",
    "ContextState",
    "CopyFile",
    "Data",
    "DisplayOutput",
    "DriverName",
    "DriverReport",
    "Env",
    "ErrorOutput",
    "Event",
    "ExecCreate",
    "ExecResult",
    "ExitCondition",
    "Failure",
    "FileDifference",
    "FileEntry",
    "FileInfo",
    "FileName",
    "FilePage",
    "FilePath",
    "FileSearch",
    "FileUser",
    "Fork",
    "ForkChild",
    "ForkResult",
    "GitClone",
    "GlobMatches",
    "GlobPattern",
    "Health",
    "History",
    "HistoryEntry",
    "Image",
    "ImageList",
    "Info",
    "InputReply",
    "InputRequest",
    "InspectReply",
    "InspectRequest",
    "Intent",
    "IntentCreate",
    "Key",
    "KeyCreate",
    "KeyId",
    "Labels",
    "LifecyclePolicy",
    "Lifetime",
    "ListeningPort",
    "LogCondition",
    "LogMatch",
    "MakeDirectory",
    "MimeBundle",
    "Mode",
    "Model",
    "MoveFile",
    "Name",
    "NewKey",
    "OnFile",
    "Origin",
    "Output",
    "Page",
    "PolicyAction",
    "Pool",
    "PoolCreate",
    "PoolStats",
    "PortCondition",
    "PortHolder",
    "PortNumber",
    "Preview",
    "PreviewCreate",
    "PreviewToken",
    "PreviewTokenCreate",
    "PreviewVisibility",
    "Process",
    "ProcessCreate",
    "ProcessExit",
    "ProcessId",
    "ProcessOutput",
    "ProcessSignal",
    "ProcessSpec",
    "ProcessState",
    "ProcessWait",
    "RemoveFile",
    "Removed",
    "Resources",
    "RestartPolicy",
    "Restore",
    "Retention",
    "Role",
    "Run",
    "RunCreate",
    "RunError",
    "RunId",
    "RunList",
    "RunState",
    "RunStatus",
    "RunSummary",
    "Sandbox",
    "SandboxCreate",
    "SandboxId",
    "SandboxState",
    "SandboxUpdate",
    "SearchMatch",
    "SearchMatches",
    "Service",
    "ServiceCreate",
    "ServiceState",
    "Snapshot",
    "SnapshotCreate",
    "SnapshotId",
    "SnapshotNode",
    "SnapshotTree",
    "StateChange",
    "StdinReply",
    "StreamOutput",
    "Template",
    "TemplateContext",
    "TemplateCreate",
    "TemplateLog",
    "TemplateRef",
    "Timestamp",
    "TreeStored",
    "TruncatedOutput",
    "Tty",
    "Usage",
    "Variable",
    "VariableDifference",
    "VariableValue",
    "Variables",
    "Volume",
    "VolumeAttachment",
    "VolumeCreate",
    "VolumeId",
    "WaitResult",
    "Watch",
    "WatchCreate",
    "WatchId",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'cloche.models' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
