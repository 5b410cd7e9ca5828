"""The session of one terminal: who watches it, who controls it, what each may be sent. Pure: events in, actions out.

Theory of operation
-------------------
Every client is a cursor into the one `OutputLog`. The edge asks `pull` what a client may be sent now; old and new bytes
come from the same place, so there is no moment between a snapshot and a subscription. After any event the edge carries
out `take_actions()` and lets every client pull again.

| event | what follows |
|---|---|
| `attach` | `Welcome`: *resume* when everything behind the client's `have` is kept, else *replay* from the oldest segment |
| `Ack` | the window moves (sent - acked <= window); a stalled client is live again |
| a client holds the program up, no ack progress for `STALL_S` | stalled: it gets nothing; it resumes or replays when it acks |
| the same while somebody types | stalled after `STALL_WHILE_TYPING_S` already |
| hidden | gets `Activity` only; shown again: resumes or replays |
| INPUT | written once whatever is sent twice (`Inputs`); its sender takes control |
| `written` | `InAck`: the bytes are in the terminal; at once for many, else with the next `tick` |

Control: the last writer that typed or asked. It sets the size and answers the terminal's queries, from `live_from` on:
`answered_upto` (the highest offset that was sent to a controller) for a controller, the head for others. So a query that
nobody has seen is answered by whoever comes first, and no query is answered twice.

Back-pressure: `paused` asks the edge to stop reading the PTY while the slowest visible, live client is
`PAUSE_BYTES` behind, until it is within `RESUME_BYTES`. Without such a client the PTY is always drained.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from cloche.models.terminals import (
    CLOSE_TAKEN_OVER,
    Ack,
    Activity,
    ClientMessage,
    Exit,
    Hello,
    InAck,
    Lag,
    Ping,
    Pong,
    Resize,
    Resync,
    Role,
    RoleChange,
    ServerMessage,
    Size,
    TakeControl,
    TerminalExit,
    TerminalProblem,
    Visible,
    Welcome,
)
from cloche.terminal_frames import Frame, FrameType, encode_frame
from cloche_guest.terminals.actions import Action, Close, Key, Repaint, SetSize, WriteInput
from cloche_guest.terminals.inputs import InputRefused, Inputs
from cloche_guest.terminals.log import Chunk, Dimensions, Hole, Item, OutputLog, Place, SizeChange
from cloche_guest.terminals.preamble import preamble

FRAME_BYTES: Final = 32 * 1024
"""Small enough that a keystroke's echo never waits long behind one, large enough that a replay is not slowed by count."""

PAUSE_BYTES: Final = 512 * 1024
RESUME_BYTES: Final = 128 * 1024
STALL_S: Final = 5.0
STALL_WHILE_TYPING_S: Final = 0.5
"""When somebody types, a frozen viewer must not hold the answer to Ctrl-C back for long."""
ACTIVITY_S: Final = 1.0
IN_ACK_BYTES: Final = 16 * 1024
"""Input after which an `InAck` does not wait for the next tick: a message for every key doubles what an echo costs."""


@dataclass(frozen=True, slots=True)
class _Preamble:
    """A frame that waits among the messages."""

    offset: int
    data: bytes


@dataclass(slots=True)
class _Client:
    id: str
    may_write: bool
    visible: bool
    window: int
    place: Place
    acked: int
    live_at: int
    """The head when it began to read: from there on it is live, before that it catches up."""
    behind_since: float
    size: Dimensions | None
    stalled: bool = False
    told_exit: bool = False
    told_written: int = 0
    in_ack_due: bool = False
    activity_at: float = -ACTIVITY_S
    outbox: deque[ServerMessage | _Preamble] = field(default_factory=deque)

    @property
    def is_live(self) -> bool:
        return self.visible and not self.stalled and self.acked >= self.live_at


class TerminalSession:
    """See the module. Times are seconds of any clock that only goes forward."""

    def __init__(self, epoch: str, log: OutputLog) -> None:
        self.epoch = epoch
        self.log = log
        self.exit: TerminalExit | None = None
        self.paused = False
        self.answered_upto = 0
        self._controller: Key | None = None
        self._clients: dict[Key, _Client] = {}
        self._inputs = Inputs()
        self._actions: list[Action] = []
        self._typed_at = -STALL_S

    def __len__(self) -> int:
        return len(self._clients)

    def take_actions(self) -> list[Action]:
        """What is to be done now, in this order."""
        actions, self._actions = self._actions, []
        return actions

    # Clients come and go

    def attach(self, key: Key, hello: Hello, *, may_write: bool, now: float) -> None:
        """A connection said hello. An older connection of the same client is closed: it is a dead one's ghost."""
        for other, ghost in list(self._clients.items()):
            if ghost.id == hello.client and ghost.may_write == may_write:
                self._actions.append(Close(other, CLOSE_TAKEN_OVER, "taken over by a newer connection"))
                del self._clients[other]
                self._controller = None if self._controller == other else self._controller
        have = hello.have if hello.epoch == self.epoch else None
        size = Dimensions(hello.cols, hello.rows) if hello.cols and hello.rows else None
        client = _Client(
            id=hello.client,
            may_write=may_write,
            visible=hello.visible,
            window=hello.window,
            place=Place(0, 0),
            acked=0,
            live_at=self.log.head,
            behind_since=now,
            size=size,
        )
        self._clients[key] = client
        if may_write:
            self._inputs.greet(client.id, hello.in_off, {other.id for other in self._clients.values()})
            client.told_written = self._inputs.written(client.id)
            if self._controller is None and client.visible:
                self._controller = key
                self._apply_size(client)
        self._start(key, client, have, now)
        self._review(now)

    def detach(self, key: Key, now: float) -> None:
        """A connection is gone. Control passes to the newest visible writer, so that queries find an answer."""
        self._clients.pop(key, None)
        if self._controller == key:
            heirs = [other for other, client in self._clients.items() if client.may_write and client.visible]
            self._set_controller(heirs[-1] if heirs else None)
        self._review(now)

    def role(self, key: Key) -> Role:
        """What this client is now."""
        if not self._clients[key].may_write:
            return "read_only"
        return "controller" if key == self._controller else "viewer"

    # What clients say

    def receive(self, key: Key, message: ClientMessage, now: float) -> None:
        """A JSON message."""
        client = self._clients.get(key)
        if client is None:
            return
        match message:
            case Ack():
                self._acknowledge(key, client, message.off, now)
            case Resize():
                client.size = Dimensions(message.cols, message.rows)
                if key == self._controller and client.visible:
                    self._apply_size(client)
            case Visible():
                self._show(key, client, message.on, now)
            case TakeControl():
                self._control(key, client)
            case Ping():
                client.outbox.append(Pong(n=message.n))
            case Resync():
                self._start(key, client, None, now)
            case Hello():
                self._refuse(client, "unexpected_hello", "a connection says hello once")
        self._review(now)

    def input(self, key: Key, frame: Frame, now: float) -> None:
        """An INPUT frame. What was taken before is left out, so a client may send anew whatever is not acknowledged."""
        client = self._clients.get(key)
        if client is None:
            return
        if not client.may_write or frame.type is not FrameType.INPUT:
            self._refuse(client, "forbidden", "this client may only watch")
            return
        if self.exit is not None:
            client.outbox.append(InAck(off=self._inputs.accepted(client.id)))
            return
        try:
            fresh = self._inputs.accept(client.id, frame.offset, frame.payload)
        except InputRefused as error:
            self._end(key, 1008, str(error))
            return
        if fresh:
            self._typed_at = now
            self._control(key, client)
            self._actions.append(WriteInput(client.id, fresh))
        else:
            client.told_written, client.in_ack_due = -1, True  # it asks again: say it again
        self._review(now)

    # What the terminal does

    def output(self, data: bytes, now: float) -> None:
        """The program wrote."""
        for client in self._clients.values():
            if client.acked == self.log.head:
                client.behind_since = now
        self.log.append(data)
        self._review(now)

    def written(self, client_id: str, count: int) -> bool:
        """Input of this client went into the PTY (or, after the exit, nowhere). Whether it should be told at once."""
        written = self._inputs.has_written(client_id, count)
        if written is None:
            return False
        told = [client.told_written for client in self._clients.values() if client.id == client_id]
        return any(written - offset >= IN_ACK_BYTES for offset in told)

    def resize(self, size: Dimensions, now: float) -> None:
        """By the API, whoever controls."""
        self._resize(size)
        self._review(now)

    def ended(self, how: TerminalExit, now: float) -> None:
        """The program ended and all its output is in the log."""
        self.exit = how
        self._review(now)

    def tick(self, now: float) -> None:
        """Time passes: call this several times a second."""
        limit = STALL_WHILE_TYPING_S if now - self._typed_at < STALL_S else STALL_S
        for client in self._clients.values():
            client.in_ack_due |= self._untold_input(client) > 0
            holds_up = self.paused and client.is_live and self.log.head - client.acked > RESUME_BYTES
            if holds_up and now - client.behind_since > limit:
                client.stalled = True
        self._review(now)

    # What a client is sent

    def pull(self, key: Key, now: float, max_bytes: int = FRAME_BYTES) -> list[str | bytes]:
        """The next messages for a client, in order, up to about ``max_bytes`` of output; [] when there is nothing now."""
        client = self._clients.get(key)
        if client is None:
            return []
        messages: list[str | bytes] = [to_text(client.outbox.popleft()) for _ in range(len(client.outbox))]
        messages += self._in_ack(client)
        if client.stalled:
            return messages
        if not client.visible:
            return messages + self._activity(client, now)
        left = min(max_bytes, client.acked + client.window - client.place.offset)
        while left > 0:
            if client.place.offset < self.log.oldest:
                self._start(key, client, client.place.offset, now)
                client.live_at = client.acked  # outrun: from now on the program waits for it
                return messages + self.pull(key, now, max_bytes)
            step = self.log.read(client.place, min(left, FRAME_BYTES))
            if step is None:
                break
            item, client.place = step
            messages += _messages(item)
            left -= len(item.data) if isinstance(item, Chunk) else 0
            if isinstance(item, Hole):
                client.acked = max(client.acked, item.end)
        if key == self._controller:
            self.answered_upto = max(self.answered_upto, client.place.offset)
        return messages + self._exit(key, client)

    # Inside

    def _start(self, key: Key, client: _Client, have: int | None, now: float) -> None:
        """Resume behind `have`, or replay."""
        log = self.log
        resume = have is not None and log.is_whole(have)
        start = have if have is not None and resume else log.oldest
        client.place = log.place(start)
        client.acked, client.live_at, client.behind_since = start, log.head, now
        client.stalled = False
        size = log.size_before(client.place) if resume else log.oldest_size
        client.outbox.append(
            Welcome(
                epoch=self.epoch,
                mode="resume" if resume else "replay",
                start=start,
                live_from=self._live_from(key),
                cols=size.cols,
                rows=size.rows,
                lost=0 if resume else start,
                alive=self.exit is None,
                role=self.role(key),
                in_off=self._inputs.accepted(client.id) if client.may_write else 0,
            )
        )
        if resume:
            return
        if modes := preamble(log.oldest_modes):
            client.outbox.append(_Preamble(start, modes))
        if log.alternate and not log.is_whole(0) and self.exit is None:
            self._actions.append(Repaint(log.size))

    def _live_from(self, key: Key) -> int:
        return self.answered_upto if key == self._controller else self.log.head

    def _acknowledge(self, key: Key, client: _Client, offset: int, now: float) -> None:
        if offset > client.place.offset:
            self._end(key, 1008, f"{offset} was acknowledged, but only {client.place.offset} was sent")
            return
        if offset > client.acked:
            client.acked, client.behind_since = offset, now
        if client.stalled:
            self._return(key, client, now)

    def _show(self, key: Key, client: _Client, on: bool, now: float) -> None:
        was, client.visible = client.visible, on
        if on and not was:
            if self._controller is None and client.may_write:
                self._set_controller(key)
            self._return(key, client, now)

    def _return(self, key: Key, client: _Client, now: float) -> None:
        """A hidden or stalled client reads again: from where it was when that is possible, else all anew."""
        if self.log.is_whole(client.place.offset):
            client.stalled = False
            client.live_at, client.behind_since = self.log.head, now
        else:
            self._start(key, client, None, now)

    def _control(self, key: Key, client: _Client) -> None:
        if not client.may_write:
            self._refuse(client, "forbidden", "this client may only watch")
        elif key != self._controller:
            self._set_controller(key)

    def _set_controller(self, key: Key | None) -> None:
        old, self._controller = self._controller, key
        if old is not None and (client := self._clients.get(old)) is not None:
            client.outbox.append(RoleChange(role=self.role(old), live_from=self.log.head))
        if key is not None:
            client = self._clients[key]
            live_from = max(self.answered_upto, client.place.offset)
            client.outbox.append(RoleChange(role="controller", live_from=live_from))
            if client.visible:
                self._apply_size(client)

    def _apply_size(self, client: _Client) -> None:
        if client.size is not None:
            self._resize(client.size)

    def _resize(self, size: Dimensions) -> None:
        if size != self.log.size:
            self.log.resize(size)
            self._actions.append(SetSize(size))

    def _refuse(self, client: _Client, code: str, message: str) -> None:
        client.outbox.append(TerminalProblem(code=code, message=message))

    def _end(self, key: Key, code: int, reason: str) -> None:
        self._refuse(self._clients[key], "protocol", reason)
        self._actions.append(Close(key, code, reason))

    def _review(self, now: float) -> None:
        """Whether the PTY is to be read. Hysteresis, so that it is not switched for every frame."""
        limit = RESUME_BYTES if self.paused else PAUSE_BYTES
        head = self.log.head
        self.paused = any(client.is_live and head - client.acked > limit for client in self._clients.values())

    def _in_ack(self, client: _Client) -> list[str | bytes]:
        if not client.in_ack_due and self._untold_input(client) < IN_ACK_BYTES:
            return []
        client.told_written, client.in_ack_due = self._inputs.written(client.id), False
        return [to_text(InAck(off=client.told_written))]

    def _untold_input(self, client: _Client) -> int:
        """Bytes that are written and of which this client does not know that yet."""
        return self._inputs.written(client.id) - client.told_written if client.may_write else 0

    def _activity(self, client: _Client, now: float) -> list[str | bytes]:
        if self.log.head == client.place.offset or now - client.activity_at < ACTIVITY_S:
            return []
        client.activity_at = now
        return [to_text(Activity(off=self.log.head))]

    def _exit(self, key: Key, client: _Client) -> list[str | bytes]:
        if self.exit is None or client.told_exit or client.place.offset < self.log.head:
            return []
        client.told_exit = True
        self._actions.append(Close(key, 1000, "the program ended"))
        return [to_text(Exit(off=self.log.head, code=self.exit.code, signal=self.exit.signal))]


def to_text(message: ServerMessage | _Preamble) -> str | bytes:
    """As it goes over the wire."""
    if isinstance(message, _Preamble):
        return encode_frame(FrameType.PREAMBLE, message.offset, message.data)
    return message.model_dump_json()


def _messages(item: Item) -> list[str | bytes]:
    if isinstance(item, Chunk):
        return [encode_frame(FrameType.OUTPUT, item.offset, item.data)]
    if isinstance(item, SizeChange):
        return [to_text(Size(off=item.offset, cols=item.size.cols, rows=item.size.rows))]
    size = Size(off=item.end, cols=item.size.cols, rows=item.size.rows)
    modes = encode_frame(FrameType.PREAMBLE, item.end, preamble(item.after, item.before))
    return [to_text(Lag(start=item.start, end=item.end)), to_text(size), modes]
