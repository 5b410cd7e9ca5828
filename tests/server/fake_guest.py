"""A guest of the tests' own making: it dials like the real one and answers what a test wants, also nonsense.

Routes it does not know go to ``handler(request)``; the default handler knows health and an echo.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

from cloche.models.guest import PROTOCOL_VERSION, HelloReply, Identity

Raw = Callable[[str, str, dict[str, str], bytes, asyncio.StreamWriter], Awaitable[None]]
"""(method, target, headers, body, writer): writes a whole raw answer."""

App = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Speaks on every tunnel into a port."""


def http_answer(status: int, body: object, content_type: str = "application/json", **headers: str) -> bytes:
    """One well-formed answer."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(raw)}\r\n{extra}\r\n"
    return head.encode() + raw


class FakeGuest:
    """Keeps ``idle`` connections dialled. Close it."""

    def __init__(
        self,
        path: Path,
        sandbox_id: str,
        epoch: str,
        token: str,
        raw: Raw | None = None,
        idle: int = 2,
        hello: dict[str, object] | None = None,
    ) -> None:
        """``hello``: of a guest that was saved, which goes on saying it until it is told who it is now."""
        self._path = path
        self.hello: dict[str, object] = hello or {
            "protocol": PROTOCOL_VERSION,
            "sandbox_id": sandbox_id,
            "epoch": epoch,
            "guest_epoch": "fake",
            "token": token,
            "session": secrets.token_hex(16),
        }
        self.raw = raw or echo
        self._idle = idle
        self._tasks: set[asyncio.Task[None]] = set()
        self._dialling = asyncio.Lock()
        """As the real guest: one hello at a time. Of two that cross, one is of an identity that the other has ended."""
        self._writers: set[asyncio.StreamWriter] = set()
        self.replies: list[HelloReply] = []
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.disconnects = 0
        self.early: bytes | None = None
        """Sent as soon as the head of a request is there; the body is read and thrown away."""
        self.answered_early = asyncio.Event()
        self.app: App | None = None
        self._closed = False

    def start(self) -> None:
        for _ in range(self._idle):
            self._dial()

    def _dial(self) -> None:
        if not self._closed:
            task = asyncio.get_running_loop().create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        while not self._closed:
            writer: asyncio.StreamWriter | None = None
            try:
                async with self._dialling:
                    reader, writer = await asyncio.open_unix_connection(str(self._path))
                    self._writers.add(writer)
                    welcome = await self._say_hello(reader, writer)
                if welcome and await self._serve(reader, writer):
                    return
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                if writer is not None:
                    self._writers.discard(writer)
                    writer.close()
            await asyncio.sleep(0.02)

    async def _say_hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """True when this connection may serve."""
        writer.write(json.dumps(self.hello).encode() + b"\n")
        line = await reader.readline()
        if not line:
            raise ConnectionError("the server stopped listening in between")
        reply = HelloReply.model_validate_json(line)
        self.replies.append(reply)
        if reply.identity is None:
            return False
        if reply.reborn:
            self._become(reply.identity)
            return False
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """True when it had a request: by then another connection was dialled in its place."""
        first = True
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (ConnectionError, asyncio.IncompleteReadError):
                return not first
            if first:
                first = False
                self._dial()
            lines = head.decode("latin-1").split("\r\n")
            method, target, _ = lines[0].split(" ")
            if self.early is not None:
                await self._answer_early(self.early, reader, writer)
                return True
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            if headers.get("upgrade") == "cloche-tcp" and self.app is not None:
                writer.write(b"HTTP/1.1 101 X\r\nConnection: Upgrade\r\nUpgrade: cloche-tcp\r\n\r\n")
                await self.app(reader, writer)
                return True
            self.requests.append((method, target, headers, body))
            answering = asyncio.ensure_future(self.raw(method, target, headers, body, writer))
            try:
                if await self._hung_up(answering, reader):
                    return True
                answering.result()
            finally:
                answering.cancel()
                await asyncio.gather(answering, return_exceptions=True)
            await writer.drain()
            if target == "/v1/identity":
                self.hello = {**self.hello, "epoch": json.loads(body)["epoch"]}
            if target == "/v1/uplinks/close":
                for open_one in list(self._writers):
                    open_one.close()

    def _become(self, identity: Identity) -> None:
        """Once, though every connection that was dialled before is told."""
        if self.hello["epoch"] == identity.epoch:
            return
        self.hello = {
            **self.hello,
            "sandbox_id": identity.sandbox_id,
            "epoch": identity.epoch,
            "guest_epoch": secrets.token_hex(4),
            "token": self.hello["session"],
            "session": secrets.token_hex(16),
        }

    async def _answer_early(self, answer: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        self.answered_early.set()
        while await reader.read(65536):
            pass

    async def _hung_up(self, answering: asyncio.Future[None], reader: asyncio.StreamReader) -> bool:
        """Waits for the answer to be written; True when the server goes away first."""
        while not answering.done():
            await asyncio.wait({answering}, timeout=0.02)
            if reader.at_eof() and not answering.done():
                self.disconnects += 1
                return True
        return False

    async def close(self) -> None:
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def echo(method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
    """Health, what a server asks of every guest around a checkpoint, and an echo of anything else."""
    if target == "/v1/health":
        writer.write(http_answer(200, {"status": "ok"}))
        return
    if target in ("/v1/uplinks/close", "/v1/warm-up", "/v1/identity", "/v1/end-all") or (method, target) == (
        "POST",
        "/v1/events",
    ):
        writer.write(http_answer(204, b""))
        return
    if target == "/v1/activity":
        writer.write(http_answer(200, {"busy": False, "reasons": [], "idle_s": 0.0}))
        return
    text = body.decode("utf-8", "replace")
    writer.write(http_answer(200, {"method": method, "target": target, "headers": headers, "body": text}))
