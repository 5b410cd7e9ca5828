"""Runs: one execution of code in a context, its events and its result."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from cloche.models._base import ContextId, Env, Model, RunId, Timestamp
from cloche.models.contexts import Code
from cloche.models.failures import Failure

MAX_RUN_TIMEOUT_S = 86_400.0
DEFAULT_RUN_TIMEOUT_S = 600.0
"""A run is always bounded; ten minutes is what notebook executors commonly give one cell."""

MAX_WAIT_S = 60.0
"""Longest single wait for a result over HTTP: below the 60 s after which common proxies cut a silent connection."""


class RunCreate(Model):
    """Body of ``POST .../runs``.

    ``id`` makes the call safe to repeat: a client that lost the connection sends the same body again, and the context
    answers with the run it already has. The same id with any other field changed is a conflict.
    """

    id: RunId | None = Field(default=None, description="chosen by the client; null: the guest chooses")
    code: Code
    timeout_s: float = Field(
        default=DEFAULT_RUN_TIMEOUT_S,
        gt=0,
        le=MAX_RUN_TIMEOUT_S,
        description="seconds from the moment it starts to run (not in the queue); then interrupt, grace, restart",
    )
    env: Env = Field(default={}, description="set for this run only, put back afterwards")
    allow_stdin: bool = Field(default=False, description="true: input() makes an input_request; false: it raises")
    stop_on_error: bool = Field(default=True, description="true: an error here aborts the runs queued behind it")
    store_history: bool = True


class RunState(StrEnum):
    """``queued -> running -> finished``."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"


class RunStatus(StrEnum):
    """How a finished run ended."""

    OK = "ok"
    ERROR = "error"  # the code raised
    INTERRUPTED = "interrupted"  # somebody asked; variables are kept unless `kernel_restarted`
    TIMED_OUT = "timed_out"  # timeout_s passed; variables are kept unless `kernel_restarted`
    ABORTED = "aborted"  # never ran: an earlier run failed, or it was cancelled in the queue
    FAILED = "failed"  # the kernel ended under it; `failure` says why


class RunError(Model):
    """What the code raised. ``traceback`` has no colour codes."""

    name: str
    value: str
    traceback: list[str]


MimeBundle = dict[str, JsonValue]
"""MIME type -> content. Binary types are base64 text, JSON types are JSON values, as in Jupyter."""


class StreamOutput(Model):
    """Text written to stdout or stderr."""

    type: Literal["stdout", "stderr"]
    text: str


class DisplayOutput(Model):
    """A ``display`` (from display calls) or the ``result`` (value of the last expression)."""

    type: Literal["display", "result"]
    data: MimeBundle
    metadata: dict[str, JsonValue] = {}
    display_id: str | None = None
    execution_count: int | None = None


class ErrorOutput(RunError):
    """The error, at its place among the outputs."""

    type: Literal["error"] = "error"


class TruncatedOutput(Model):
    """Output dropped here by the output cap: the head before and the tail after it are kept."""

    type: Literal["truncated"] = "truncated"
    records: int
    bytes: int


Output = Annotated[StreamOutput | DisplayOutput | ErrorOutput | TruncatedOutput, Field(discriminator="type")]


class InputRequest(Model):
    """The code waits in ``input()``."""

    prompt: str
    password: bool


class Run(Model):
    """One run and what it produced so far.

    ``outputs`` is the display list as a notebook would show it: stream text joined, ``clear_output`` and display
    updates applied. ``truncated`` sums up what the output cap dropped.
    """

    id: RunId
    context_id: ContextId
    generation: int = Field(description="of the context's kernel that runs it")
    state: RunState
    status: RunStatus | None = Field(description="null until finished")
    code: str
    execution_count: int | None
    outputs: list[Output]
    error: RunError | None = None
    failure: Failure | None = None
    kernel_restarted: bool = Field(default=False, description="the variables of the context were lost")
    input_request: InputRequest | None = None
    truncated: TruncatedOutput | None = None
    created_at: Timestamp
    started_at: Timestamp | None
    finished_at: Timestamp | None
    duration_s: float | None = Field(description="of running, without the queue")
    cursor: str = Field(description="follow the run's events from here")


class RunSummary(Model):
    """A run in a list, without code and outputs."""

    id: RunId
    state: RunState
    status: RunStatus | None
    execution_count: int | None
    created_at: Timestamp
    started_at: Timestamp | None
    finished_at: Timestamp | None


class RunList(Model):
    """Runs the context still keeps, oldest first."""

    runs: list[RunSummary]


class InputReply(Model):
    """Body of ``POST .../input``: one line, without its newline."""

    text: str = Field(max_length=1024 * 1024)
