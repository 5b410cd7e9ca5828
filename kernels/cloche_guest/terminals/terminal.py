"""One live terminal: a PTY, its session and its recording, put together. It translates between them and keeps no rules."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from pydantic import JsonValue

from cloche.models.terminals import ClientMessage, Hello, Terminal, TerminalCreate, TerminalExit, TerminalState
from cloche.terminal_frames import Frame
from cloche_guest.children import ExitStatus
from cloche_guest.clock import Clock
from cloche_guest.contexts import _leftovers
from cloche_guest.terminals.actions import Close, Key, Repaint, SetSize, WriteInput
from cloche_guest.terminals.log import Dimensions, OutputLog
from cloche_guest.terminals.pty import Pty
from cloche_guest.terminals.recording import OUTPUT, RESIZE, Recording
from cloche_guest.terminals.session import TerminalSession

REPAINT_S: Final = 0.05
"""Between the two size changes of a repaint: programs read their size when the signal arrives, not when it was sent."""

HANGUP_GRACE_S: Final = 1.0

REDRAW_S: Final = 1.0
"""Programs draw their screen anew within this time of a change of size, which a viewer may cause by coming back."""


@dataclass(slots=True)
class _Connection:
    wake: Callable[[], None]
    closing: tuple[int, str] | None = None


class LiveTerminal:
    """Made by the service, which gives it its PTY with `run`."""

    def __init__(
        self,
        terminal_id: str,
        body: TerminalCreate,
        *,
        argv: list[str],
        cwd: str,
        epoch: str,
        mark: str,
        recording: Recording | None,
        tell: Callable[[str, Mapping[str, JsonValue]], None],
        clock: Clock,
    ) -> None:
        size = Dimensions(body.cols, body.rows)
        self.id = terminal_id
        self.body = body
        self.session = TerminalSession(epoch, OutputLog(size))
        self._argv = argv
        self._cwd = cwd
        self._mark = mark
        self._recording = recording
        self._tell = tell
        self._clock = clock
        self._resized_at = float("-inf")
        self.worked_at = clock()
        """When it last started, got keys or wrote; what it writes because its size changed is no work."""
        self._pty: Pty | None = None
        self._connections: dict[Key, _Connection] = {}
        self._next_key = 0
        self._repaint: asyncio.TimerHandle | None = None
        self._started = time.monotonic()
        self._created_at = self._active_at = datetime.now(UTC)
        self._exited_at: datetime | None = None

    def run(self, pty: Pty) -> None:
        """The program runs."""
        self._pty = pty
        self._tell("terminal_opened", {**self._names(), "pid": pty.pid, "command": " ".join(self._argv)[:256]})

    @property
    def exited(self) -> bool:
        return self.session.exit is not None

    @property
    def tree(self) -> tuple[int, str] | None:
        """Pid and mark, by which all is found that it has started."""
        return (self._pty.pid, self._mark) if self._pty is not None and not self.exited else None

    @property
    def has_recording(self) -> bool:
        return self._recording is not None

    def to_model(self) -> Terminal:
        log = self.session.log
        return Terminal(
            id=self.id,
            name=self.body.name,
            argv=self._argv,
            cwd=self._cwd,
            env=sorted(self.body.env),
            state=TerminalState.EXITED if self.exited else TerminalState.RUNNING,
            exit=self.session.exit,
            epoch=self.session.epoch,
            cols=log.size.cols,
            rows=log.size.rows,
            title=log.tracker.title.decode("utf-8", "replace"),
            oldest_offset=log.oldest,
            head_offset=log.head,
            viewers=len(self.session),
            recorded=self.has_recording,
            created_at=self._created_at,
            last_activity_at=self._active_at,
            exited_at=self._exited_at,
        )

    # For connections

    def connect(self, wake: Callable[[], None]) -> Key:
        """A connection; ``wake`` is called when `pull` may have something."""
        self._next_key += 1
        self._connections[self._next_key] = _Connection(wake)
        return self._next_key

    def attach(self, key: Key, hello: Hello, *, may_write: bool) -> None:
        self.session.attach(key, hello, may_write=may_write, now=_now())
        self._carry_out()

    def disconnect(self, key: Key) -> None:
        self._connections.pop(key, None)
        self.session.detach(key, _now())
        self._carry_out()

    def receive(self, key: Key, message: ClientMessage | Frame) -> None:
        if isinstance(message, Frame):
            self._active_at = datetime.now(UTC)
            self.worked_at = self._clock()
            self.session.input(key, message, _now())
        else:
            self.session.receive(key, message, _now())
        self._carry_out()

    def pull(self, key: Key) -> list[str | bytes]:
        messages = self.session.pull(key, _now())
        self._carry_out(wake=False)
        return messages

    def closing(self, key: Key) -> tuple[int, str] | None:
        """Code and reason, when this connection is to be closed."""
        connection = self._connections.get(key)
        return connection.closing if connection else (1000, "")

    # For the API

    def resize(self, size: Dimensions) -> None:
        self.session.resize(size, _now())
        self._carry_out()

    @property
    def is_watched(self) -> bool:
        """Somebody is connected."""
        return bool(self._connections)

    def tick(self) -> None:
        """Several times a second while it is watched."""
        if self._connections:
            self.session.tick(_now())
            self._carry_out()

    def asciicast(self) -> Iterator[bytes]:
        assert self._recording is not None
        return self._recording.asciicast(self.to_model().title)

    def close_connections(self, code: int, reason: str) -> None:
        for key in list(self._connections):
            self._close(key, code, reason)

    async def end(self) -> None:
        """Hang up, then kill, everything the program started; returns when all is released."""
        pty = self._pty
        if pty is not None and not self.exited:
            known = _leftovers.members(_leftovers.read_processes(), pty.pid, self._mark)
            pty.signal(signal.SIGHUP)
            pty.signal(signal.SIGCONT)  # a stopped program could not obey
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pty.wait_closed(), HANGUP_GRACE_S)
            pty.signal(signal.SIGKILL)
            await _leftovers.end_members(pty.pid, self._mark, known)
            pty.resume()
            await pty.wait_closed()
        self.release()

    def release(self) -> None:
        """After the end."""
        if self._repaint is not None:
            self._repaint.cancel()
        if self._recording is not None:
            self._recording.close()
            self._recording = None

    # What the PTY tells

    def on_output(self, data: bytes) -> None:
        self._active_at = datetime.now(UTC)
        if (now := self._clock()) - self._resized_at > REDRAW_S:
            self.worked_at = now
        self.session.output(data, _now())
        self._carry_out()
        self._record(OUTPUT, data)  # viewers first: a write to the disk takes its time

    def on_written(self, writer: str, count: int) -> None:
        if self.session.written(writer, count):
            self._wake()

    def on_end(self, status: ExitStatus) -> None:
        self._exited_at = datetime.now(UTC)
        self.session.ended(TerminalExit(code=status.code, signal=status.signal), _now())
        self._tell("terminal_closed", {**self._names(), "code": status.code, "signal": status.signal})
        self._carry_out()

    # Inside

    def _names(self) -> dict[str, JsonValue]:
        return {"terminal_id": self.id, "name": self.body.name}

    def _carry_out(self, *, wake: bool = True) -> None:
        for action in self.session.take_actions():
            match action:
                case WriteInput():
                    if self._pty is not None:
                        self._pty.write(action.client, action.data)
                case SetSize():
                    self._set_size(action.size)
                case Repaint():
                    self._start_repaint(action.size)
                case Close():
                    self._close(action.key, action.code, action.reason)
        if self._pty is not None:
            (self._pty.pause if self.session.paused else self._pty.resume)()
        if wake:
            self._wake()

    def _wake(self) -> None:
        for connection in list(self._connections.values()):
            connection.wake()

    def _close(self, key: Key, code: int, reason: str) -> None:
        connection = self._connections.get(key)
        if connection is not None and connection.closing is None:
            connection.closing = (code, reason)
            connection.wake()

    def _set_size(self, size: Dimensions) -> None:
        self._resized_at = self._clock()
        self._record(RESIZE, f"{size.cols}x{size.rows}".encode())
        if self._pty is not None:
            self._pty.resize(size)

    def _start_repaint(self, size: Dimensions) -> None:
        self._resized_at = self._clock()
        if self._pty is not None and self._repaint is None and size.rows > 1:
            self._pty.resize(Dimensions(size.cols, size.rows - 1))
            self._repaint = asyncio.get_running_loop().call_later(REPAINT_S, self._end_repaint)

    def _end_repaint(self) -> None:
        self._repaint = None
        if self._pty is not None:
            self._pty.resize(self.session.log.size)

    def _record(self, kind: bytes, data: bytes) -> None:
        if self._recording is not None:
            self._recording.add(time.monotonic() - self._started, kind, data)


def _now() -> float:
    return time.monotonic()
