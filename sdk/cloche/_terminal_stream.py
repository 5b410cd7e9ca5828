"""TerminalStream: a client's side of ``term.v1``, over as many connections as it takes. Pure: messages in, events out.

`web/src/protocol/stream.ts` is the same in TypeScript; `tests/vectors/terminal/stream.json` holds both to it.

Rules
-----
* Every OUTPUT frame says where it belongs. What was received before is dropped; what is missing becomes a `Gap`.
* After a lost connection `hello` says what was received, and output goes on there, or a `Reset` says that it cannot.
* Input waits in a buffer until it is acknowledged, so it is neither lost nor typed twice. After an outage of
  `RESEND_WITHIN_S` or more, or in another life of the terminal, it is dropped and `Discarded` says how much.
* `took` tells how far the output was dealt with; that is what is acknowledged, every `ACK_BYTES` and when it is quiet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from cloche.models.terminals import (
    INPUT_WINDOW_BYTES,
    RESEND_WITHIN_S,
    Ack,
    Activity,
    Exit,
    Hello,
    InAck,
    Lag,
    Pong,
    Role,
    RoleChange,
    ServerMessage,
    Size,
    TerminalExit,
    TerminalProblem,
    Welcome,
    server_message,
)
from cloche.terminal_frames import FrameError, FrameType, decode_frame, encode_frame

ACK_BYTES: Final = 64 * 1024
INPUT_FRAME_BYTES: Final = 16 * 1024
"""Pastes are sent in such pieces; what another viewer types comes in between."""


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes of the terminal, for the first time since the last `Reset`."""

    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Preamble:
    """Bytes for the screen that the terminal did not put out: modes."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Reset:
    """Start with a fresh terminal of this size; ``lost`` bytes before ``start`` are no longer kept."""

    start: int
    cols: int
    rows: int
    lost: int
    new_life: bool


@dataclass(frozen=True, slots=True)
class Resumed:
    """Output goes on where it was."""

    start: int


@dataclass(frozen=True, slots=True)
class Resized:
    """Output after this is for a terminal of this size."""

    cols: int
    rows: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Output from ``start`` to ``end`` is missing."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """What this client may do, and from which offset on it answers the terminal's queries (never, when ``None``)."""

    role: Role
    answers_from: int | None


@dataclass(frozen=True, slots=True)
class Discarded:
    """So many bytes of input were dropped, since it is too late for them."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The program ended; all of its output was received."""

    exit: TerminalExit


@dataclass(frozen=True, slots=True)
class Refused:
    """Something this client did was not allowed."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Active:
    """A hidden client: there is output."""

    offset: int


StreamEvent = Output | Preamble | Reset | Resumed | Resized | Gap | RoleChanged | Discarded | Ended | Refused | Active


class ProtocolBroken(ValueError):
    """The other side said something that has no meaning."""


class TerminalStream:
    """See the module. Times are seconds of any clock that only goes forward."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.epoch: str | None = None
        self.exit: TerminalExit | None = None
        self.role: Role | None = None
        self.connected = False
        self._expected: int | None = None
        self._taken = 0
        self._acked = 0
        self._input = bytearray()
        self._input_start = 0
        self._input_sent = 0
        self._lost_at: float | None = None

    @property
    def unacknowledged_input(self) -> int:
        """Bytes that were typed and of which it is not known that they arrived."""
        return len(self._input)

    @property
    def unsent_input(self) -> int:
        """Bytes that were typed and wait for the window, or for a connection."""
        return self._input_start + len(self._input) - self._input_sent

    def hello(self, *, cols: int | None = None, rows: int | None = None, visible: bool = True) -> str:
        """The first message of a connection."""
        message = Hello(
            client=self.client,
            epoch=self.epoch,
            have=self._expected if self.epoch is not None else None,
            in_off=self._input_start,
            cols=cols,
            rows=rows,
            visible=visible,
        )
        return message.model_dump_json(exclude_none=True)

    def lost(self, now: float) -> None:
        """The connection is gone."""
        self.connected = False
        if self._lost_at is None:
            self._lost_at = now

    def rested(self) -> None:
        """Nothing was on its way, and nobody comes back for now: for what is typed next, the outage begins then."""
        self._lost_at = None

    def type(self, data: bytes) -> None:
        """Input to be sent by `to_send`."""
        self._input += data

    @property
    def has_input(self) -> bool:
        """Whether something was typed that the terminal has not taken yet."""
        return bool(self._input)

    def took(self, offset: int) -> None:
        """Output before this offset was dealt with."""
        self._taken = max(self._taken, offset)

    def to_send(self, *, quiet: bool = False) -> list[str | bytes]:
        """Messages that may go out now. ``quiet``: no output came for a while, so the last bit is acknowledged, too."""
        if not self.connected:
            return []
        messages: list[str | bytes] = []
        if self._taken - self._acked >= ACK_BYTES or (quiet and self._taken > self._acked):
            self._acked = self._taken
            messages.append(Ack(off=self._acked).model_dump_json())
        limit = min(len(self._input), INPUT_WINDOW_BYTES)
        while (at := self._input_sent - self._input_start) < limit:
            piece = bytes(self._input[at : min(at + INPUT_FRAME_BYTES, limit)])
            messages.append(encode_frame(FrameType.INPUT, self._input_sent, piece))
            self._input_sent += len(piece)
        return messages

    def receive(self, message: str | bytes, now: float) -> list[StreamEvent]:
        """What a message means.

        Raises:
            ProtocolBroken
        """
        try:
            if isinstance(message, bytes):
                return self._frame(message)
            return self._said(server_message.validate_json(message), now)
        except (FrameError, ValidationError) as error:
            raise ProtocolBroken(str(error)) from error

    def _frame(self, message: bytes) -> list[StreamEvent]:
        frame = decode_frame(message)
        if frame.type is FrameType.PREAMBLE:
            return [Preamble(frame.payload)]
        if frame.type is not FrameType.OUTPUT or self._expected is None:
            raise ProtocolBroken(f"unexpected frame {frame.type.name}")
        events: list[StreamEvent] = self._skip_to(frame.offset)
        fresh = frame.payload[self._expected - frame.offset :]
        if fresh:
            events.append(Output(self._expected, fresh))
            self._expected += len(fresh)
        return events

    def _skip_to(self, offset: int) -> list[StreamEvent]:
        """A gap, when ``offset`` is beyond what is expected next."""
        assert self._expected is not None
        if offset <= self._expected:
            return []
        gap = Gap(self._expected, offset)
        self._expected = offset
        return [gap]

    def _said(self, message: ServerMessage, now: float) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        match message:
            case Welcome():
                events = self._welcome(message, now)
            case Size():
                events = [Resized(message.cols, message.rows)]
            case Exit():
                self.exit = TerminalExit(code=message.code, signal=message.signal)
                events = [Ended(self.exit)]
            case InAck():
                self._acknowledged(message.off)
            case RoleChange():
                events = [self._role(message.role, message.live_from)]
            case Lag():
                events = self._skip_to(message.end) if self._expected is not None else []
                self._acked = self._taken = max(self._taken, message.end)
            case Activity():
                events = [Active(message.off)]
            case TerminalProblem():
                events = [Refused(message.code, message.message)]
            case Pong():
                pass
        return events

    def _welcome(self, message: Welcome, now: float) -> list[StreamEvent]:
        self.connected = True
        new_life = self.epoch != message.epoch
        events: list[StreamEvent] = self._reconcile_input(message.in_off, new_life and self.epoch is not None, now)
        self._lost_at = None
        if message.mode == "resume" and (new_life or message.start != self._expected):
            raise ProtocolBroken(f"resumed at {message.start} instead of {self._expected}")
        self.epoch, self._expected = message.epoch, message.start
        self._acked = self._taken = message.start
        if message.mode == "resume":
            events.append(Resumed(message.start))
        else:
            events.append(Reset(message.start, message.cols, message.rows, message.lost, new_life))
        return [*events, self._role(message.role, message.live_from)]

    def _role(self, role: Role, live_from: int) -> RoleChanged:
        self.role = role
        return RoleChanged(role, live_from if role == "controller" else None)

    def _reconcile_input(self, taken: int, other_life: bool, now: float) -> list[StreamEvent]:
        """Drop what arrived; send the rest again, or drop it when it is too late."""
        self._acknowledged(taken)
        late = other_life or (self._lost_at is not None and now - self._lost_at >= RESEND_WITHIN_S)
        count = len(self._input) if late else 0
        if count:
            self._input.clear()
        self._input_start = self._input_sent = taken
        return [Discarded(count)] if count else []

    def _acknowledged(self, offset: int) -> None:
        count = min(max(0, offset - self._input_start), len(self._input))
        del self._input[:count]
        self._input_start += count
        self._input_sent = max(self._input_sent, self._input_start)
