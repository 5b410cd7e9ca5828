"""Processes: programs started through the API, what they put out, and waiting for them.

A process ends in two steps. Its program (the root of its tree) exits: ``exit`` says how. It is *finished* when the output
is drained and no member of its group is left, too; until then it is *lingering*: a background child still runs.
"""

from __future__ import annotations

import base64
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from cloche.models._base import Env, Model, Name, Timestamp
from cloche.models.contexts import Directory
from cloche.models.events import Event
from cloche.models.programs import Program
from cloche.models.runs import DEFAULT_RUN_TIMEOUT_S, MAX_RUN_TIMEOUT_S, MAX_WAIT_S

ProcessId = Annotated[str, StringConstraints(pattern=r"^proc-[a-z0-9]{12}$")]

MAX_STDIN_BYTES: Final = 1024 * 1024
"""Input of one call that waits in the guest for a program to read it; a larger one is taken in parts."""

MAX_EXEC_OUTPUT_BYTES: Final = 4 * 1024 * 1024
DEFAULT_EXEC_OUTPUT_BYTES: Final = 1024 * 1024
MAX_INPUT_CHARACTERS: Final = 5 * 1024 * 1024

StreamName = Literal["stdout", "stderr"]
SignalName = Annotated[str, StringConstraints(pattern=r"^(SIG)?[A-Z][A-Z0-9+]{1,10}$")]


class Data(Model):
    """Bytes in JSON: ``text`` when they are UTF-8 without NUL, else ``base64``. Neither: no bytes."""

    text: str | None = Field(default=None, max_length=MAX_INPUT_CHARACTERS)
    base64: str | None = Field(default=None, max_length=2 * MAX_INPUT_CHARACTERS, pattern=r"^[A-Za-z0-9+/]*={0,2}$")

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if self.text is not None and self.base64 is not None:
            raise ValueError("give text or base64, not both")
        if self.base64 is not None and len(self.base64) % 4:
            raise ValueError("base64 must have its padding")
        return self

    @classmethod
    def of(cls, data: bytes) -> Self:
        return cls.model_construct(None, **data_fields(data))

    def to_bytes(self) -> bytes:
        if self.base64 is not None:
            return base64.b64decode(self.base64)
        return (self.text or "").encode("utf-8", "surrogatepass")


def data_fields(data: bytes) -> dict[str, str]:
    """The JSON form of ``data``. What has a NUL is no text, and JSON would need six bytes for each."""
    if b"\0" not in data:
        try:
            return {"text": data.decode()}
        except UnicodeDecodeError:
            pass
    return {"base64": base64.b64encode(data).decode("ascii")}


class Tty(Model):
    """Size of the terminal a program gets. Its stdout and stderr are then one stream, ``stdout``."""

    cols: int = Field(default=80, ge=1, le=2000)
    rows: int = Field(default=24, ge=1, le=1000)


class ProcessSpec(Program):
    """What to start."""

    cwd: Directory | None = Field(default=None, description="null: the workspace")
    env: Env = Field(default={}, description="over the sandbox' own")
    user: Literal["user", "root"] = Field(default="user", description="root: only where the sandbox has sudo")
    grace_s: float = Field(default=5.0, ge=0, le=60, description="seconds between TERM and KILL when its time is over")
    tty: Tty | None = None

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if self.argv is None and self.shell is None:
            raise ValueError("give argv or shell, one of them")
        return self


class ProcessCreate(ProcessSpec):
    """Body of ``POST .../processes``. ``id`` makes the call safe to repeat, as for runs."""

    id: ProcessId | None = Field(default=None, description="chosen by the client; null: the guest chooses")
    name: Name | None = None
    stdin: Literal["eof", "open"] = Field(default="eof", description="eof: the program reads the end at once")
    timeout_s: float | None = Field(
        default=None, gt=0, le=MAX_RUN_TIMEOUT_S, description="seconds the program may run; null: no limit"
    )


class ExecCreate(ProcessSpec):
    """Body of ``POST .../exec``: run to the end and answer with the output. Input is closed behind ``input``."""

    id: ProcessId | None = Field(default=None, description="chosen by the client; null: the guest chooses")
    input: Data = Field(default=Data.model_construct(), description="what the program reads from stdin")
    timeout_s: float = Field(default=DEFAULT_RUN_TIMEOUT_S, gt=0, le=MAX_RUN_TIMEOUT_S)
    max_output_bytes: int = Field(
        default=DEFAULT_EXEC_OUTPUT_BYTES, ge=2, le=MAX_EXEC_OUTPUT_BYTES, description="of each stream in the answer"
    )


class ProcessState(StrEnum):
    """``running -> lingering -> finished``; ``lost``: it is gone and nobody saw how it ended."""

    RUNNING = "running"
    LINGERING = "lingering"
    FINISHED = "finished"
    LOST = "lost"


class ProcessExit(Model):
    """How the program ended: by ``code`` or by ``signal``, never both, and never guessed."""

    code: int | None = None
    signal: str | None = None
    timed_out: bool = Field(default=False, description="it was ended because its time was over")
    out_of_memory: bool = Field(default=False, description="it was killed because the sandbox had no memory left")


class Process(Model):
    """One process."""

    id: ProcessId
    name: str | None
    service: str | None = Field(description="the service it belongs to")
    argv: list[str]
    cwd: str
    env: list[str] = Field(description="names only, of its own")
    user: Literal["user", "root"]
    tty: Tty | None
    timeout_s: float | None
    pid: int = Field(description="inside the sandbox")
    state: ProcessState
    exit: ProcessExit | None = Field(description="null while the program runs, and when it is lost")
    output_held: bool = Field(
        description="when it finished, a descendant that had left its group still held the output; what that wrote later is"
        " not in the journal"
    )
    stdin_open: bool
    stdin_offset: int = Field(description="bytes of input taken so far")
    stdout_bytes: int = Field(description="put out so far, kept or not")
    stderr_bytes: int
    created_at: Timestamp
    exited_at: Timestamp | None
    finished_at: Timestamp | None
    duration_s: float | None = Field(description="of the program, from its start to its exit")
    cursor: str = Field(description="the head of its journal: follow from here to get only what comes now")


class ProcessSignal(Model):
    """Body of ``POST .../signal``: for every process of the tree, also those that left the group."""

    signal: SignalName | Annotated[int, Field(ge=1, le=64)] = Field(description="TERM, SIGTERM or 15")
    kill_after_s: float | None = Field(default=None, ge=0, le=3600, description="then KILL for what is left")


class StdinReply(Model):
    """What became of input. ``offset``: bytes taken since the start; send the rest from there."""

    offset: int
    open: bool


class ProcessOutput(Model):
    """A page of the journal. ``cursor``: where the next page begins; ``at_end``: nothing follows, ever."""

    events: list[Event]
    cursor: str
    at_end: bool


class CapturedOutput(Model):
    """Output of one stream. When it is over the cap, ``data`` is its head and ``tail`` its end."""

    data: Data
    tail: Data = Data.model_construct()
    total_bytes: int
    omitted_bytes: int = Field(default=0, description="between data and tail")


class ExecResult(Model):
    """How an exec went. ``process.exit`` is null while it runs: ask again with the same body."""

    process: Process
    stdout: CapturedOutput
    stderr: CapturedOutput
    truncated: bool = Field(description="something of the output is not in this answer")


# Waiting

_SECONDS = Field(ge=0, le=MAX_WAIT_S)


class _Tagged(Model):
    """A condition says its type also where only the fields that were set are sent."""

    @model_validator(mode="after")
    def _say_type(self) -> Self:
        self.model_fields_set.add("type")
        return self


class ExitCondition(_Tagged):
    """It has finished."""

    type: Literal["exit"] = "exit"


class PortCondition(_Tagged):
    """Something answers on a port of the sandbox' loopback. ``http``: with a status in the range."""

    type: Literal["port"] = "port"
    port: int = Field(ge=1, le=65_535)
    protocol: Literal["tcp", "http"] = "tcp"
    path: str = Field(default="/", max_length=2048, pattern=r"^/[\x21-\x7e]*$")
    headers: dict[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")],
        Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e\t]*$", max_length=8192)],
    ] = Field(default={}, max_length=32)
    status_from: int = Field(default=200, ge=100, le=599)
    status_to: int = Field(default=399, ge=100, le=599)
    interval_s: float = Field(default=0.1, ge=0.02, le=10, description="between two checks")
    check_timeout_s: float = Field(default=5.0, ge=0.05, le=30, description="of one check")

    @model_validator(mode="after")
    def _range(self) -> Self:
        if self.status_from > self.status_to:
            raise ValueError("status_from is above status_to")
        return self


class LogCondition(_Tagged):
    """The output has a text, or matches a regular expression (Python's), also across the borders of chunks."""

    type: Literal["log"] = "log"
    pattern: str = Field(min_length=1, max_length=1000)
    regex: bool = False
    stream: Literal["stdout", "stderr", "both"] = "both"
    cursor: str | None = Field(
        default=None, max_length=256, description="look behind this place; null: from the oldest record kept"
    )


Condition = Annotated[ExitCondition | PortCondition | LogCondition, Field(discriminator="type")]


class ProcessWait(Model):
    """Body of ``POST .../wait``."""

    conditions: list[Condition] = Field(min_length=1, max_length=16)
    mode: Literal["all", "any"] = "all"
    timeout_s: Annotated[float, _SECONDS] = 30.0


class LogMatch(Model):
    """Where a log condition was met. ``cursor``: behind the record that completed the match."""

    stream: StreamName
    text: str = Field(description="what matched, 4,096 characters at most")
    line: str = Field(description="the line around it so far, 4,096 characters at most")
    groups: list[str | None] = []
    cursor: str


class ConditionResult(Model):
    """One condition. ``last``: what the last check of a port said."""

    met: bool
    match: LogMatch | None = None
    last: str | None = None


class WaitResult(Model):
    """``met`` false: the time was over, nothing else happened. ``results`` are in the order of the conditions."""

    met: bool
    results: list[ConditionResult]
    process: Process


# Services


class RestartPolicy(Model):
    """When a service's program is started again, and how often."""

    when: Literal["never", "on_failure", "always"] = Field(
        default="on_failure", description="on_failure: after any end but exit code 0"
    )
    max_restarts: int = Field(
        default=10, ge=0, le=1_000_000, description="in a row; counted anew after it was up for 60 s"
    )
    delay_s: float = Field(default=0.5, ge=0.01, le=3600, description="before the first restart; doubled for each one")
    max_delay_s: float = Field(default=30.0, ge=0.01, le=3600)


class ServiceCreate(ProcessSpec):
    """Body of ``POST .../services``: a process that is kept running, also over restarts of the guest."""

    name: Name
    restart: RestartPolicy = RestartPolicy.model_construct()
    ready: PortCondition | LogCondition | None = Field(
        default=None, discriminator="type", description="null: it is ready as soon as it runs"
    )
    depends_on: list[Name] = Field(default=[], max_length=32, description="services that must be ready first")


class ServiceState(StrEnum):
    """``waiting -> starting -> ready -> backing_off -> starting ...``; ``ended``, ``failed``: it is not started again."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    BACKING_OFF = "backing_off"
    ENDED = "ended"
    FAILED = "failed"


class Service(Model):
    """One service."""

    name: str
    state: ServiceState
    argv: list[str]
    restart: RestartPolicy
    depends_on: list[str]
    process_id: ProcessId | None = Field(description="of the newest start; its journal has the output")
    restarts: int = Field(description="since it was declared or the guest started")
    last_exit: ProcessExit | None
    problem: str | None = Field(description="why it is not running, in words")
    created_at: Timestamp
