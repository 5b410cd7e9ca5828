"""Where guests dial: one Unix socket for each sandbox, in a directory of its own that is mounted into it.

``<uplinks>/<sandbox id>/uplink.sock``. The parent is 0700, so nobody else on the host gets at it; the directory itself
is 0755 and the socket 0666, because inside the sandbox the guest may be any uid. The directory outlives this process:
after a restart of the server the socket is made again in the same directory, and the guests, which never stop trying,
find it through their mount.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from cloche.errors import InvalidRequest, SandboxStartFailed
from cloche.models.guest import PROTOCOL_VERSION, Hello
from cloche_server.auth import hash_secret
from cloche_server.clock import Clock, now_us, to_datetime
from cloche_server.uplink._hello import HELLO_TIMEOUT_S, MAX_HELLO_BYTES, Expected, check_hello
from cloche_server.uplink._pool import WirePool
from cloche_server.uplink._wire import Traffic, Wire, WireClosed

SOCKET_NAME: Final = "uplink.sock"

MAX_SOCKET_PATH_BYTES: Final = 107
"""sun_path of unix(7), without its final zero."""

Remember = Callable[[str, str], None]
"""Told the sandbox's id and the hash of its guest's session, once in every life of the guest."""

MAX_GREETING: Final = 32
"""Connections of one sandbox that have not said hello yet; more are closed. A guest dials a handful at once."""

_LOG: Final = logging.getLogger("cloche.uplink")


class Uplink:
    """The listening side of one sandbox. Made and closed by the hub."""

    def __init__(self, directory: Path, expected: Expected, clock: Clock, remember: Remember, traffic: Traffic) -> None:
        self.directory = directory
        self.pool = WirePool(expected.sandbox_id)
        self.greeted = asyncio.Event()
        """Set at the first accepted hello."""
        self.guest_epoch: str | None = None
        self._first_expected = self._expected = expected
        self._traffic = traffic
        self._clock = clock
        self._remember = remember
        self._refusals: set[str] = set()
        self._wrong_protocol: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None
        self._listening = False
        self._greetings: dict[asyncio.Task[None], Wire] = {}
        self._dialled = 0.0

    @property
    def session_hash(self) -> str:
        """Of the session its guest has now; of the token before the first hello."""
        return self._expected.token_hash

    async def start(self) -> None:
        """`OSError` when the socket cannot be made."""
        self.directory.mkdir(mode=0o755, exist_ok=True)
        self.directory.chmod(0o755)
        path = self.directory / SOCKET_NAME
        self.greeted.clear()
        self._listening = True  # whoever dials before this returns is welcome
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Wire(self._connected, self._traffic), str(path), backlog=256
        )
        path.chmod(0o666)

    async def wait_greeted(self) -> None:
        """Returns at the first accepted hello, and waits for ever for it.

        Raises:
            SandboxStartFailed: the guest speaks another protocol, so it never will be.
        """
        greeted = asyncio.ensure_future(self.greeted.wait())
        try:
            await asyncio.wait((greeted, self._wrong_protocol), return_when=asyncio.FIRST_COMPLETED)
        finally:
            greeted.cancel()
        if not self.greeted.is_set():
            raise SandboxStartFailed(
                f"the guest in the image speaks protocol {self._wrong_protocol.result()}, this server {PROTOCOL_VERSION}",
                hint="rebuild the image: cloche image build",
                details={"output": ""},
            )

    async def listen_again(self) -> None:
        """Undo `stop_listening`; `greeted` then waits for the next hello."""
        if self._server is None:
            await self.start()

    def begin_again(self) -> None:
        """Another process is started with the token, or from the checkpoint, that the one before has spent."""
        self._expected = self._first_expected
        self.greeted.clear()
        self.pool.cut()

    def be_claimed(self, epoch: str, env: dict[str, str]) -> None:
        """The sandbox is another one; its guest is to be told, and then `settle` is called."""
        self._expected = self._expected.claimed(epoch, env)

    def settle(self) -> None:
        """The guest knows that it was claimed."""
        self._expected = replace(self._expected, former_env=None)

    async def quiet(self, still_s: float = 0.05, bound_s: float = 2.0) -> None:
        """Returns when the guest has dialled what it wants to dial: nothing came for ``still_s``, or ``bound_s`` is over.

        Before it is frozen: a dial that is frozen half way is given up when it thaws, as its time is over then.
        """
        ends = time.monotonic() + bound_s
        while time.monotonic() < ends:
            if not self._greetings and time.monotonic() - self._dialled >= still_s:
                return
            await asyncio.sleep(still_s / 5)

    def _connected(self, wire: Wire) -> None:
        self._dialled = time.monotonic()
        if not self._listening or len(self._greetings) >= MAX_GREETING:
            wire.close()
            return
        task = asyncio.get_running_loop().create_task(self._greet(wire))
        self._greetings[task] = wire
        task.add_done_callback(lambda done: self._greetings.pop(done, None) and None)

    async def _greet(self, wire: Wire) -> None:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                line = await wire.read_line(MAX_HELLO_BYTES)
                verdict = check_hello(line, self._expected, to_datetime(self._clock()))
                if verdict.hello is not None:
                    self._spend_token(verdict.hello)
                await wire.write(verdict.reply.model_dump_json().encode() + b"\n")
        except (ValueError, WireClosed, TimeoutError):
            wire.close()
            return
        if verdict.hello is not None:
            self._accept(verdict.hello, wire)
            return
        if verdict.wrong_protocol and not self._wrong_protocol.done():
            self._wrong_protocol.set_result(verdict.wrong_protocol)
        if verdict.reply.refused is not None:
            self._log_refusal(verdict.reply.refused)
        await self._close_gently(wire)

    def _log_refusal(self, why: str) -> None:
        """Each reason once: whoever is refused tries again for ever, and must not fill the log."""
        if why not in self._refusals:
            self._refusals.add(why)
            _LOG.warning("uplink refused", extra={"sandbox_id": self._expected.sandbox_id, "why": why})

    def _spend_token(self, hello: Hello) -> None:
        """Before the reply, so that no crash leaves the token good; the guest repeats its session if none comes."""
        session_hash = hash_secret(hello.session)
        if session_hash != self._expected.token_hash:
            self._remember(self._expected.sandbox_id, session_hash)
            self._expected = replace(self._expected, token_hash=session_hash)

    def _accept(self, hello: Hello, wire: Wire) -> None:
        """From here on the wire is the pool's: it is closed with the greetings no more."""
        if (task := asyncio.current_task()) is not None:
            self._greetings.pop(task, None)
        self.guest_epoch = hello.guest_epoch
        self.pool.put(wire, fresh=True)
        self.greeted.set()

    @staticmethod
    async def _close_gently(wire: Wire) -> None:
        """So that the refusal is read: the guest hangs up first, or one second passes."""
        try:
            async with asyncio.timeout(1):
                await wire.read()
        except TimeoutError:
            pass
        wire.close()

    def stop_listening(self) -> None:
        """Guests that dial are refused by the kernel; connections stay."""
        self._listening = False
        if self._server is not None:
            _close_when_accepted(self._server)
            self._server = None
        for task, wire in list(self._greetings.items()):
            task.cancel()
            wire.close()

    def close(self) -> None:
        """Stops listening and closes what is idle; calls under way are left to their owners."""
        self.stop_listening()
        self.pool.close()


def _close_when_accepted(server: asyncio.Server) -> None:
    """In the next turn of the loop. A connection that was accepted in this one has no transport yet: asyncio cannot make it
    one of a server that is closed, and leaves it open until it is collected as garbage (Python 3.11)."""
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    loop.call_soon(server.close)


class UplinkHub:
    """All uplinks of this server."""

    def __init__(self, root: Path, remember: Remember, clock: Clock = now_us) -> None:
        self._root = root
        self._remember = remember
        self._clock = clock
        self._uplinks: dict[str, Uplink] = {}
        self._traffic: dict[str, Traffic] = {}

    def prepare(self) -> None:
        """`InvalidRequest` when the sockets' paths would be too long for the kernel."""
        longest = len(os.fsencode(self._root / ("x" * 20) / SOCKET_NAME))
        if longest > MAX_SOCKET_PATH_BYTES:
            raise InvalidRequest(
                f"sockets below {self._root} would have paths of {longest} bytes; {MAX_SOCKET_PATH_BYTES} are possible",
                hint="choose a shorter --run-dir",
            )
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root.chmod(0o700)

    def directory(self, sandbox_id: str) -> Path:
        return self._root / sandbox_id

    def on_disk(self) -> list[str]:
        """Ids with a directory, of this server or of one before it."""
        return [path.name for path in self._root.iterdir() if path.is_dir()]

    async def listen(self, expected: Expected) -> Uplink:
        """`OSError` when the socket cannot be made."""
        sandbox_id = expected.sandbox_id
        traffic = self._traffic.setdefault(sandbox_id, Traffic())
        uplink = Uplink(self.directory(sandbox_id), expected, self._clock, self._remember, traffic)
        await uplink.start()
        self._uplinks[sandbox_id] = uplink
        return uplink

    def traffic(self, sandbox_id: str) -> Traffic:
        """Counted since this server first listened for it, and until `remove`; nothing before and after."""
        return self._traffic.get(sandbox_id) or Traffic()

    def connections(self) -> int:
        """Open now, of all sandboxes."""
        return sum(traffic.connections for traffic in self._traffic.values())

    def remove(self, sandbox_id: str) -> None:
        """Closes the uplink, if any, and deletes its directory. Idempotent."""
        self._traffic.pop(sandbox_id, None)
        uplink = self._uplinks.pop(sandbox_id, None)
        if uplink is not None:
            uplink.close()
        shutil.rmtree(self.directory(sandbox_id), ignore_errors=True)

    def close(self) -> None:
        """Directories stay: the guests go on dialling there until a new server listens."""
        for uplink in self._uplinks.values():
            uplink.close()
        self._uplinks.clear()
