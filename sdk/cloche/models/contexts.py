"""Contexts: live kernels whose variables persist between runs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from cloche.models._base import ContextId, Env, Model, Name, RunId, Timestamp
from cloche.models.failures import Failure

Language = Literal["python"]

Directory = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4096)]
"""Absolute path inside the sandbox."""

MAX_CODE_BYTES = 4 * 1024 * 1024
"""Longest code of one run. 4 MiB is 40 times the largest notebook cell we know of and parses in about a second."""

Code = Annotated[str, StringConstraints(max_length=MAX_CODE_BYTES)]


class ContextLimits(Model):
    """rlimits of the kernel and everything it starts; null: only the sandbox' own limits."""

    memory_mb: int | None = Field(
        default=None, ge=128, description="RLIMIT_AS in MiB; Python raises MemoryError. A bare kernel needs some 100"
    )
    cpu_s: int | None = Field(default=None, ge=1, description="RLIMIT_CPU in seconds over the kernel's whole life")
    open_files: int | None = Field(default=None, ge=64, le=1_048_576, description="RLIMIT_NOFILE")
    file_size_mb: int | None = Field(default=None, ge=1, description="RLIMIT_FSIZE in MiB")


class ContextState(StrEnum):
    """``starting -> idle <-> busy``; ``restarting`` on the way to a new kernel; ``dead`` stays until restarted."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    RESTARTING = "restarting"
    DEAD = "dead"


class ContextCreate(Model):
    """Body of ``POST .../contexts``."""

    language: Language = "python"
    name: Name | None = None
    cwd: Directory = "/workspace"
    env: Env = {}
    limits: ContextLimits = ContextLimits.model_construct()
    restart_policy: Literal["on_death", "never"] = Field(
        default="on_death", description="what happens when the kernel ends by itself; its variables are gone either way"
    )
    interrupt_grace_s: float = Field(
        default=5.0, ge=0.1, le=60, description="seconds between SIGINT and a restart, for runs that do not stop"
    )


class Context(Model):
    """One context. ``generation`` counts its kernels: 1 at first, one more after every restart."""

    id: ContextId
    name: str | None
    language: Language
    cwd: str
    env: list[str] = Field(description="names only")
    limits: ContextLimits
    restart_policy: Literal["on_death", "never"]
    interrupt_grace_s: float
    state: ContextState
    generation: int
    execution_count: int
    queue: list[RunId] = Field(description="runs in order, the running one first")
    created_at: Timestamp
    last_activity_at: Timestamp
    failure: Failure | None = Field(default=None, description="why the last kernel ended, when it ended by itself")


class CompleteRequest(Model):
    """``cursor_pos`` counts Unicode code points, as in the Jupyter protocol; null: the end."""

    code: Code
    cursor_pos: int | None = Field(default=None, ge=0)


class CompleteReply(Model):
    """Replace ``code[cursor_start:cursor_end]`` by one of ``matches``."""

    matches: list[str]
    cursor_start: int
    cursor_end: int
    types: list[str | None] = Field(description="kind of each match (function, module, ...), as the kernel says")


class InspectRequest(CompleteRequest):
    """``detail_level`` 1 asks for the source as well."""

    detail_level: Literal[0, 1] = 0


class InspectReply(Model):
    """``data`` is a MIME bundle, empty when nothing was found."""

    found: bool
    data: dict[str, JsonValue]


class HistoryEntry(Model):
    """One executed input."""

    generation: int
    execution_count: int
    run_id: RunId | None
    code: str


class History(Model):
    """Oldest first; the newest ``limit`` entries."""

    entries: list[HistoryEntry]


class Variable(Model):
    """One name of the user's namespace. Absent facts are null: nothing is computed that could be slow."""

    name: str
    type: str = Field(description="qualified type name, as in pandas.DataFrame")
    shape: list[int] | None = None
    length: int | None = None
    dtype: str | None = None
    size_bytes: int | None = Field(default=None, description="nbytes or sys.getsizeof; shallow for containers")
    summary: str = Field(description="first 200 characters of repr, or a note why there is none")


class Variables(Model):
    """Sorted by name. ``truncated`` when the namespace has more than the 1,000 listed."""

    variables: list[Variable]
    truncated: bool
