"""What the other side said before it left is heard, although nothing can be sent to it any more.

`cloche shell` ended with "the terminal closed the connection", without the last output and the exit code: its
acknowledgement of earlier output was due just when the program ended.
"""

from __future__ import annotations

import json
import os
from typing import TypeVar

import pytest

from cloche._attachment import AttachmentFlows, Where
from cloche._flow import driven
from cloche._patience import Patience
from cloche._socket import Hear, Open, Say, SocketFlow, SocketLost, SocketStep
from cloche.cli._own_terminal import OwnTerminal
from cloche.cli._shell_session import ShellSession
from cloche.errors import ClocheError, LimitReached, NotFound, SandboxNotRunning, SandboxUnreachable
from cloche.models.terminals import CLOSE_ASLEEP, Exit, TerminalExit, Welcome
from cloche.terminal_frames import FrameType, encode_frame

T = TypeVar("T")

WELCOME = Welcome(
    epoch="e", mode="replay", start=0, live_from=0, cols=80, rows=24, lost=0, alive=True, role="controller", in_off=0
).model_dump_json()
FIRST = encode_frame(FrameType.OUTPUT, 0, b"first ")
LAST = encode_frame(FrameType.OUTPUT, 6, b"last\n")
EXIT = Exit(off=11, code=7, signal=None).model_dump_json()
LEFT = SocketLost(1000, "the program ended")


class Leaving:
    """A socket whose other side is quiet after "first", and then says "last" and the exit and leaves. The client does not
    look before it has something to send."""

    def __init__(self) -> None:
        self.incoming: list[str | bytes | None] = [WELCOME, FIRST, None, LAST, EXIT]
        self.said: list[str | bytes] = []

    @property
    def gone(self) -> bool:
        return len(self.incoming) <= 2

    def hear(self) -> str | bytes | None:
        return self.incoming.pop(0)

    def carry_out(self, flow: SocketFlow[T]) -> T:
        return driven(flow, self.take)

    def take(self, step: SocketStep) -> object:
        lost = isinstance(step, Say) and step.messages and self.gone
        self.said += step.messages if isinstance(step, Say) else []
        if lost or (isinstance(step, Hear) and not self.incoming):
            raise LEFT
        return self.hear() if isinstance(step, Hear) else None

    async def drive(self, flow: SocketFlow[T]) -> T:
        return self.carry_out(flow)


@pytest.mark.parametrize("busy", ["reads", "sends", "resizes"])
def test_by_an_attachment(busy: str) -> None:
    socket = Leaving()
    flows = AttachmentFlows(Where("ws://guest", {}), Patience(0))
    socket.carry_out(flows._begin())
    assert socket.carry_out(flows._read()) == b"first "
    if busy != "reads":
        assert socket.incoming.pop(0) is None  # the acknowledgement is not what meets the end
        socket.carry_out(flows._send("x") if busy == "sends" else flows._resize(100, 30))
    assert socket.carry_out(flows._read()) == b"last\n"
    assert socket.carry_out(flows._read()) == b"", "the end"
    assert flows.exit == TerminalExit(code=7)
    socket.carry_out(flows._resize(90, 20))  # was a `SocketLost`, which is nobody's to catch


async def test_a_shell_tells_the_size_that_its_window_got_before_it_was_welcome(
    tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Resized(Leaving):
        def hear(self) -> str | bytes | None:
            if self.incoming[0] == WELCOME:
                monkeypatch.setenv("COLUMNS", "101")  # there is nobody to tell yet
            return super().hear()

    monkeypatch.setenv("COLUMNS", "90")
    screen = os.open(os.path.join(tmp_path, "screen"), os.O_RDWR | os.O_CREAT)
    session = ShellSession(Where("ws://guest", {}), OwnTerminal(0, screen), rouse=lambda: pytest.fail("not at rest"))
    socket = session._socket = Resized()  # type: ignore[assignment]
    await session._talk()
    await session._resizing
    assert [json.loads(said)["cols"] for said in socket.said if '"cols"' in str(said)] == [90, 101]
    os.close(screen)


async def test_by_a_shell(tmp_path: os.PathLike[str]) -> None:
    screen = os.open(os.path.join(tmp_path, "screen"), os.O_RDWR | os.O_CREAT)
    session = ShellSession(Where("ws://guest", {}), OwnTerminal(0, screen), rouse=lambda: pytest.fail("not at rest"))
    session._socket = Leaving()  # type: ignore[assignment]
    assert await session._talk() == TerminalExit(code=7)
    assert b"first last\n" in os.pread(screen, 1000, 0)
    os.close(screen)


RESUMED = WELCOME.replace('"mode":"replay","start":0', '"mode":"resume","start":6')


class Broken(Leaving):
    """Is lost after "first", by ``lost``; then each attempt to come back has the next of ``outcomes``: an error, or what is
    heard then."""

    def __init__(self, lost: SocketLost, *outcomes: ClocheError | list[str | bytes | None]) -> None:
        super().__init__()
        self.incoming = [WELCOME, FIRST]
        self.outcomes: list[ClocheError | list[str | bytes | None]] = [[WELCOME, FIRST], *outcomes]
        self.lost = lost

    def take(self, step: SocketStep) -> object:
        if isinstance(step, Open):
            opened = self.outcomes.pop(0)
            self.incoming = [] if isinstance(opened, ClocheError) else opened
            if isinstance(opened, ClocheError):
                raise opened
        elif isinstance(step, Hear):
            if not self.incoming:
                raise self.lost
            return self.hear()
        elif isinstance(step, Say):
            self.said += step.messages
        return None


def shown_by(socket: Leaving, directory: os.PathLike[str]) -> ShellSession:
    screen = os.open(os.path.join(directory, "screen"), os.O_RDWR | os.O_CREAT)
    session = ShellSession(Where("ws://guest", {}), OwnTerminal(0, screen), rouse=lambda: pytest.fail("not at rest"))
    session._socket = socket  # type: ignore[assignment]
    return session


CUT = SocketLost(1006, "")


@pytest.mark.parametrize("refusal", [SandboxUnreachable("no connection yet"), LimitReached("as many viewers as may")])
async def test_a_shell_comes_back_to_a_server_that_is_not_ready_for_it_yet(
    tmp_path: os.PathLike[str], refusal: ClocheError
) -> None:
    """It left, where every other client tried again: what was cut comes back at once, and may be too early."""
    session = shown_by(Broken(CUT, refusal, [RESUMED, LAST, EXIT]), tmp_path)
    assert await session._talk() == TerminalExit(code=7)
    os.close(session._own._screen)


async def test_a_shell_ends_with_what_is_final(tmp_path: os.PathLike[str]) -> None:
    session = shown_by(Broken(CUT, NotFound("no such terminal")), tmp_path)
    with pytest.raises(NotFound):
        await session._talk()
    os.close(session._own._screen)
    session = shown_by(Broken(CUT), tmp_path)
    session._socket.outcomes = [SandboxUnreachable("never was there")]  # type: ignore[attr-defined]
    with pytest.raises(SandboxUnreachable):
        await session._talk()
    os.close(session._own._screen)


def test_what_is_typed_long_after_the_sandbox_was_put_to_rest_arrives() -> None:
    """It was dropped, and nobody told: an outage of ten seconds and more was counted from the rest on."""
    now = 0.0
    socket = Broken(SocketLost(CLOSE_ASLEEP, "asleep"), [RESUMED])
    flows = AttachmentFlows(Where("ws://guest", {}), Patience(1), lambda: now)
    socket.carry_out(flows._begin())
    assert socket.carry_out(flows._read()) == b"first "
    with pytest.raises(SandboxNotRunning):
        socket.carry_out(flows._read())
    now = 60.0
    socket.carry_out(flows._send("x"))
    assert socket.said[-1] == encode_frame(FrameType.INPUT, 0, b"x")
