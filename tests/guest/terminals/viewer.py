"""A viewer for tests: the SDK's own stream over a WebSocket that can be cut, frozen and resumed."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from cloche._terminal_stream import Ended, Gap, Output, Reset, StreamEvent, TerminalStream
from cloche.models.terminals import TerminalExit
from cloche.terminal_frames import SUBPROTOCOL

TIMEOUT_S = 60.0

QUIET = logging.getLogger("viewer")
"""A connection that is cut under it is news to `websockets`, not to these tests."""
QUIET.disabled = True


class Viewer:
    """Attached at once. ``received`` is the output as one string of bytes; ``gaps`` what was said to be missing."""

    def __init__(self, url: str, client: str = "viewer-0001", headers: dict[str, str] | None = None, **size: int):
        self.url = url
        self.headers = headers
        self.size: dict[str, Any] = size
        self.stream = TerminalStream(client)
        self.received = bytearray()
        self.position = 0
        self.gaps: list[Gap] = []
        self.events: list[StreamEvent] = []
        self.exit: TerminalExit | None = None
        self.close_code: int | None = None
        self.close_reason = ""
        self.socket: ClientConnection | None = None
        self.attach()

    def attach(self) -> None:
        self.stack = contextlib.ExitStack()
        connection = connect(
            self.url,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            additional_headers=self.headers,
            proxy=None,
            max_size=None,
            max_queue=4,
            ping_interval=None,
            open_timeout=TIMEOUT_S,
            close_timeout=0.2,
            logger=QUIET,
        )
        self.socket = self.stack.enter_context(connection)
        self.close_code = None
        self.socket.send(self.stream.hello(**self.size))
        while not self.stream.connected and self.pump(TIMEOUT_S):
            pass

    def cut(self) -> None:
        """Without a goodbye."""
        assert self.socket is not None
        self.socket.socket.close()
        with contextlib.suppress(Exception):
            self.stack.close()
        self.stream.lost(time.monotonic())

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.stack.close()

    def type(self, data: str | bytes) -> None:
        self.stream.type(data.encode() if isinstance(data, str) else data)
        self.flush()

    def flush(self, *, quiet: bool = False) -> None:
        assert self.socket is not None
        with contextlib.suppress(ConnectionClosed):
            for message in self.stream.to_send(quiet=quiet):
                self.socket.send(message)

    def pump(self, timeout_s: float = 0.05) -> bool:
        """Take one message; whether there was one."""
        assert self.socket is not None
        try:
            message = self.socket.recv(timeout_s)
        except TimeoutError:
            self.flush(quiet=True)
            return False
        except ConnectionClosed as error:
            self.close_code, self.close_reason = (error.rcvd.code, error.rcvd.reason) if error.rcvd else (1006, "")
            return False
        for event in self.stream.receive(message, time.monotonic()):
            self.take(event)
        self.flush()
        return True

    def take(self, event: StreamEvent) -> None:
        match event:
            case Output():
                if event.offset > self.position:
                    self.gaps.append(Gap(self.position, event.offset))
                    self.position = event.offset
                if event.end > self.position:
                    self.received += event.data[self.position - event.offset :]
                    self.position = event.end
                self.stream.took(event.end)
                return
            case Reset(new_life=True, start=start):
                self.position = start
            case Ended(how):
                self.exit = how
        self.events.append(event)

    def until(self, pattern: str | bytes, timeout_s: float = TIMEOUT_S) -> bytes:
        """Take output until it matches."""
        wanted = re.compile(pattern.encode() if isinstance(pattern, str) else pattern)
        end = time.monotonic() + timeout_s
        while not wanted.search(self.received):
            assert time.monotonic() < end, f"no {pattern!r} in {bytes(self.received[-2000:])!r}"
            assert self.close_code is None, f"closed ({self.close_code}) before {pattern!r}: {self.received[-2000:]!r}"
            self.pump()
        return bytes(self.received)

    def until_event(self, kind: type[StreamEvent], timeout_s: float = TIMEOUT_S) -> Any:
        end = time.monotonic() + timeout_s
        while not (found := [event for event in self.events if isinstance(event, kind)]):
            assert time.monotonic() < end, f"no {kind.__name__}"
            self.pump()
        return found[-1]

    def until_closed(self, timeout_s: float = TIMEOUT_S) -> int:
        end = time.monotonic() + timeout_s
        while self.close_code is None:
            assert time.monotonic() < end, f"not closed after {bytes(self.received[-2000:])!r}"
            self.pump(1)
        return self.close_code
