"""Terminals: programs on a PTY, and the JSON messages of the protocol ``term.v1`` (binary frames: `cloche.terminal_frames`)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter

from cloche.models._base import Env, Model, Name, Timestamp
from cloche.models.contexts import Directory
from cloche.models.programs import Program

TerminalId = Annotated[str, StringConstraints(pattern=r"^term-[a-z0-9]{12}$")]
ShareId = Annotated[str, StringConstraints(pattern=r"^shr-[a-z0-9]{12}$")]

Columns = Annotated[int, Field(ge=2, le=1000)]
Rows = Annotated[int, Field(ge=1, le=1000)]
"""Programs divide by these numbers and allocate their product; 1000 x 1000 is more than any screen shows."""

Offset = Annotated[int, Field(ge=0, le=2**53 - 1)]
ClientId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{8,64}$")]

WINDOW_BYTES: Final = 256 * 1024
"""Output a client may have before it acknowledged any; xterm.js's guide: below 500 KB Ctrl-C stays snappy."""

INPUT_WINDOW_BYTES: Final = 256 * 1024
"""Input a client may have sent that no `InAck` has acknowledged."""

RESEND_WITHIN_S: Final = 10.0
"""Input that is older than this when the connection is back is dropped: a command must not run minutes later."""


class TerminalState(StrEnum):
    """An exited terminal stays readable until it is deleted or pushed out by newer ones."""

    RUNNING = "running"
    EXITED = "exited"


class TerminalExit(Model):
    """How the program ended: by ``code`` or by ``signal``."""

    code: int | None = None
    signal: int | None = None


class TerminalCreate(Program):
    """Body of ``POST .../terminals``. Neither ``argv`` nor ``shell``: the user's shell."""

    name: Name | None = None
    cwd: Directory | None = Field(default=None, description="null: the workspace")
    env: Env = {}
    cols: Columns = 80
    rows: Rows = 24
    record: bool = Field(default=True, description="keep a recording (at most 16 MiB) for download")


class TerminalSize(Model):
    """Body of ``POST .../resize``, of a terminal and of a process."""

    cols: Columns
    rows: Rows


class Terminal(Model):
    """One terminal. ``epoch`` names this life of its output; offsets mean nothing in another one."""

    id: TerminalId
    name: str | None
    argv: list[str]
    cwd: str
    env: list[str] = Field(description="names only")
    state: TerminalState
    exit: TerminalExit | None = None
    epoch: str
    cols: int
    rows: int
    title: str = Field(description="as the program set it; untrusted text")
    oldest_offset: int = Field(description="of the output that is still kept")
    head_offset: int = Field(description="bytes put out so far")
    viewers: int = Field(description="clients that are attached now")
    recorded: bool
    created_at: Timestamp
    last_activity_at: Timestamp
    exited_at: Timestamp | None = None


class TerminalShareCreate(Model):
    """Body of ``POST .../share``."""

    ttl_s: int = Field(default=3600, ge=1, le=30 * 24 * 3600, description="seconds until the link ends")


class TerminalShare(Model):
    """A link that lets whoever has it watch one terminal, and do nothing else."""

    id: ShareId
    token: str
    path: str = Field(description="of the page on this server; the token is in its fragment, which no log sees")
    expires_at: Timestamp


class TerminalShareInfo(Model):
    """A link that was made. Its token is not kept, and cannot be asked for."""

    id: ShareId
    terminal_id: TerminalId
    created_at: Timestamp
    expires_at: Timestamp
    watchers: int = Field(description="connections it has open now")


# Client to guest


class Hello(Model):
    """First message of a client. ``have``: everything before this offset of ``epoch`` was received."""

    type: Literal["hello"] = "hello"
    v: Literal[1] = 1
    client: ClientId = Field(description="random, the same over all connections of one client")
    epoch: str | None = Field(default=None, max_length=64)
    have: Offset | None = None
    in_off: Offset = Field(default=0, description="input bytes known to be acknowledged")
    cols: Columns | None = None
    rows: Rows | None = None
    visible: bool = True
    window: int = Field(default=WINDOW_BYTES, ge=4096, le=WINDOW_BYTES)


class Ack(Model):
    """Everything before ``off`` was taken in."""

    type: Literal["ack"] = "ack"
    off: Offset


class Resize(Model):
    """The size this client would have; it counts while the client is in control and visible."""

    type: Literal["resize"] = "resize"
    cols: Columns
    rows: Rows


class Visible(Model):
    """A client that is not visible gets no output, only `Activity`."""

    type: Literal["visible"] = "visible"
    on: bool


class TakeControl(Model):
    """Make this client the controller. Typing does so, too."""

    type: Literal["take_control"] = "take_control"


class Ping(Model):
    """Answered by `Pong` with the same ``n``."""

    type: Literal["ping"] = "ping"
    n: Offset = 0


class Resync(Model):
    """Replay everything that is kept."""

    type: Literal["resync"] = "resync"


ClientMessage = Annotated[
    Hello | Ack | Resize | Visible | TakeControl | Ping | Resync,
    Field(discriminator="type"),
]
client_message: Final[TypeAdapter[ClientMessage]] = TypeAdapter(ClientMessage, config=ConfigDict(defer_build=True))

# Guest to client

Role = Literal["controller", "viewer", "read_only"]
"""The controller sets the size and answers queries. A viewer becomes it by typing; a read-only client cannot type."""


class Welcome(Model):
    """Answer to `Hello`, and the beginning of every replay.

    ``mode`` resume: output goes on at ``start``, which is what the client has. ``replay``: reset the terminal, set it
    to ``cols`` and ``rows``, then take what follows. Only the controller answers queries, and only at or after
    ``live_from``.
    """

    type: Literal["welcome"] = "welcome"
    epoch: str
    mode: Literal["resume", "replay"]
    start: Offset
    live_from: Offset
    cols: int
    rows: int
    lost: int = Field(description="bytes before `start` that are no longer kept")
    alive: bool
    role: Role
    in_off: Offset = Field(description="input of this client taken so far; send on from here")


class Size(Model):
    """From ``off`` on the terminal has this size."""

    type: Literal["size"] = "size"
    off: Offset
    cols: int
    rows: int


class Exit(Model):
    """The program ended; no output follows. The connection is closed with 1000."""

    type: Literal["exit"] = "exit"
    off: Offset
    code: int | None = None
    signal: int | None = None


class InAck(Model):
    """Input before ``off`` was written to the terminal."""

    type: Literal["in_ack"] = "in_ack"
    off: Offset


class RoleChange(Model):
    """This client's role from now on."""

    type: Literal["role"] = "role"
    role: Role
    live_from: Offset


class Lag(Model):
    """Output from ``start`` to ``end`` is no longer kept; a `Size` and a PREAMBLE frame follow."""

    type: Literal["lag"] = "lag"
    start: Offset
    end: Offset


class Activity(Model):
    """For a client that is not visible: there is output up to ``off``."""

    type: Literal["activity"] = "activity"
    off: Offset


class Pong(Model):
    """Answer to `Ping`."""

    type: Literal["pong"] = "pong"
    n: Offset = 0


class TerminalProblem(Model):
    """Something this client did was refused; the connection goes on unless it is closed."""

    type: Literal["error"] = "error"
    code: str
    message: str


ServerMessage = Annotated[
    Welcome | Size | Exit | InAck | RoleChange | Lag | Activity | Pong | TerminalProblem,
    Field(discriminator="type"),
]
server_message: Final[TypeAdapter[ServerMessage]] = TypeAdapter(ServerMessage, config=ConfigDict(defer_build=True))

CLOSE_TAKEN_OVER: Final = 4001
"""The same client attached again."""
CLOSE_NO_TERMINAL: Final = 4004
"""The terminal was deleted."""
CLOSE_ASLEEP: Final = 4005
"""The sandbox was paused, suspended or stopped. Attaching anew wakes it, so clients do not do that by themselves."""
CLOSE_NOT_ALLOWED: Final = 4401
"""The link that this client came by is over or was revoked; the reason says which."""
FINAL_CLOSE_CODES: Final = frozenset({1000, 1008, CLOSE_TAKEN_OVER, CLOSE_NO_TERMINAL, CLOSE_ASLEEP, CLOSE_NOT_ALLOWED})
"""A client does not come back after these."""
