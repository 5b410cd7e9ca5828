"""The sockets to one kernel, on the event loop.

Plain non-blocking ZMQ sockets, read from the loop's reader callback: the fewest steps between a message and its
journal. A ZMQ descriptor is edge-triggered and any call on the socket may eat the edge, so two rules hold: a wake-up
reads until there is nothing left (in portions, so that a flood of one kernel does not starve the others), and every
send is followed by a read.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import zmq

from cloche_guest.contexts._wire import BadMessage, Message, Signer

log = logging.getLogger(__name__)

Channel = Literal["shell", "control", "stdin", "iopub"]

PORTS: Final[Mapping[Channel, int]] = {"shell": 1, "iopub": 2, "stdin": 3, "control": 4}
"""With transport ipc a port is the suffix of the socket's path."""

RECEIVE_QUEUE: Final = 64
"""Messages our iopub socket may hold. Our kernels wait when it is full (XPUB_NODROP), so a bound loses nothing."""

PORTION: Final = 16
"""Messages read in one go before others get their turn: at most 16 x 128 KiB of text, some 20 ms."""


LAST_LOOK_S: Final = 0.01
LAST_LOOKS: Final = 100
"""So often at most: what is not there by then was not sent."""


class Channels:
    """Four sockets. `on_message(channel, message)` is called in the loop for everything the kernel says."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        base: Path,
        key: bytes,
        on_message: Callable[[Channel, Message], None],
    ) -> None:
        self._signer = Signer(key, secrets.token_hex(8))
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._sockets: dict[Channel, zmq.Socket[bytes]] = {}
        self._welcomes: dict[str, asyncio.Future[None]] = {}
        for channel in PORTS:
            self._sockets[channel] = self._connect(context, base, channel)

    def close(self) -> None:
        """Messages not yet read are dropped; closing twice does nothing."""
        for socket in self._sockets.values():
            self._loop.remove_reader(socket.FD)
            socket.close(linger=0)
        self._sockets.clear()

    def send(
        self, channel: Channel, kind: str, content: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
    ) -> str:
        """Send a request; returns its msg_id. The queue to a kernel that does not read is bounded by our own queue of
        runs and by the bounded waits of everything else."""
        message_id = secrets.token_hex(12)
        socket = self._sockets.get(channel)
        if socket is None:
            return message_id  # the kernel has just died, its task will find out
        socket.send_multipart(self._signer.pack(kind, message_id, content, metadata or {}), zmq.NOBLOCK)
        self._loop.call_soon(self._read, channel)
        return message_id

    def drain(self) -> bool:
        """Take everything that has arrived, at once; whether there was anything."""
        found = [self._drain(channel) for channel in self._sockets]
        return any(found)

    async def drain_dead(self) -> None:
        """Take all that a kernel said before it ended. ZMQ's own thread fetches it, and may not have had a processor yet."""
        self.drain()
        for _ in range(LAST_LOOKS):
            await asyncio.sleep(LAST_LOOK_S)
            if not self.drain():
                return

    async def subscribe(self) -> None:
        """Return when everything published from now on arrives.

        The kernel welcomes a topic once, its first subscriber; so subscribe to everything, and then to a topic nobody
        else can have: its welcome proves that the first subscription is in force.
        """
        topic = f"cloche-{secrets.token_hex(8)}"
        welcome = self._welcomes[topic] = self._loop.create_future()
        iopub = self._sockets["iopub"]
        iopub.setsockopt(zmq.SUBSCRIBE, b"")
        iopub.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self._loop.call_soon(self._read, "iopub")
        try:
            await welcome
        finally:
            del self._welcomes[topic]

    def _connect(self, context: zmq.Context[zmq.Socket[bytes]], base: Path, channel: Channel) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.SUB if channel == "iopub" else zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE if channel == "iopub" else 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 5)  # ms; only matters if a path does not exist yet, the default is 100
        if channel != "iopub":
            # One identity on shell and stdin: a kernel sends input_request to whoever asked it to execute.
            socket.setsockopt(zmq.IDENTITY, self._signer.session.encode())
        socket.connect(f"ipc://{base}-{PORTS[channel]}")
        self._loop.add_reader(socket.FD, self._read, channel)
        return socket

    def _read(self, channel: Channel) -> None:
        for _ in range(PORTION):
            if not self._read_one(channel):
                return
        self._loop.call_soon(self._read, channel)

    def _drain(self, channel: Channel) -> bool:
        found = False
        while self._read_one(channel):
            found = True
        return found

    def _read_one(self, channel: Channel) -> bool:
        """False: nothing is there now."""
        socket = self._sockets.get(channel)
        if socket is None:
            return False
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._take(channel, frames)
        return True

    def _take(self, channel: Channel, frames: list[bytes]) -> None:
        try:
            message = self._signer.unpack(frames)
        except BadMessage as error:
            log.warning("a message on %s is ignored: %s", channel, error)
            return
        if message.kind == "iopub_welcome":
            welcome = self._welcomes.get(str(message.content.get("subscription")))
            if welcome is not None and not welcome.done():
                welcome.set_result(None)
            return
        self._on_message(channel, message)
