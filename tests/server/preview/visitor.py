"""A visitor that says exactly what a test wants, and apps that answer exactly so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from ..conftest import Harness
from ..fake_guest import App

UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
ACCEPTED = (
    b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)

Respond = Callable[["Seen", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Answer:
    """A response as it came."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    closed: bool = False

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


@dataclass
class Seen:
    """A request as an app sees it."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class RecordingApp:
    """Answers with ``respond``; remembers every request and how many tunnels there were."""

    respond: Respond
    seen: list[Seen] = field(default_factory=list)
    tunnels: int = 0
    ended: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def __call__(self) -> App:
        return self._run

    async def _run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tunnels += 1
        self.writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:] if line)}
                body = (
                    b"" if "x-no-read" in headers else await reader.readexactly(int(headers.get("content-length", "0")))
                )
                seen = Seen(lines[0], headers, body)
                self.seen.append(seen)
                await self.respond(seen, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended += 1
            self.writers.discard(writer)


def plain(text: str = "hello", *headers: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(text)}", *headers, "", text]
    return "\r\n".join(lines).encode()


def saying(raw: bytes) -> RecordingApp:
    async def respond(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return RecordingApp(respond)


def saying_and_hanging_up(raw: bytes) -> RecordingApp:
    async def respond(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)
        await writer.drain()
        raise ConnectionError

    return RecordingApp(respond)


@dataclass
class Stage:
    """A sandbox with a private preview of port 8000."""

    cloche: Harness
    sandbox_id: str
    port: int = 8000
    app: RecordingApp | None = None

    @property
    def host(self) -> str:
        return f"{self.port}-{self.sandbox_id}.localhost:{self.cloche.server.port}"

    @property
    def path(self) -> str:
        return f"/v1/sandboxes/{self.sandbox_id}/previews/{self.port}"

    async def use(self, app: RecordingApp) -> None:
        """From now on this one listens. The connections of the one before end, as they do with a program."""
        for writer in list(self.app.writers) if self.app is not None else ():
            writer.close()
            await writer.wait_closed()
        self.app = app
        self.cloche.driver.guests[self.sandbox_id].app = app()
        await self.cloche.client.get("/v1/health")  # by now the server has seen that they ended

    async def token(self, ttl_s: int = 60) -> str:
        response = await self.cloche.client.post(f"{self.path}/token", json={"ttl_s": ttl_s})
        assert response.status_code == 200, response.text
        return str(response.json()["token"])

    async def cookie(self) -> str:
        answer = await self.get(f"/?cloche_token={await self.token()}", "Accept: text/html")
        assert answer.status == 302
        return (answer.get("set-cookie") or "").partition(";")[0]

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.cloche.server.port, limit=1 << 20)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def raw(self, data: bytes) -> bytes:
        """Everything that comes back until the server hangs up."""
        async with self.connection() as (reader, writer):
            writer.write(data)
            async with asyncio.timeout(30):
                return await reader.read()

    async def request(
        self, method: str, target: str, *headers: str, body: bytes = b"", host: str | None = None
    ) -> Answer:
        length = [f"Content-Length: {len(body)}"] if body else []
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host or self.host}", *length, *headers, "", ""]
        async with self.connection() as (reader, writer):
            writer.write("\r\n".join(lines).encode("latin-1") + body)
            return await asyncio.wait_for(read_answer(reader, method), 30)

    async def get(self, target: str, *headers: str) -> Answer:
        return await self.request("GET", target, *headers)


async def read_answer(reader: asyncio.StreamReader, method: str = "GET") -> Answer:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = [(k, v.strip()) for k, _, v in (line.partition(":") for line in lines[1:] if line)]
    answer = Answer(int(lines[0].split(" ")[1]), headers, b"")
    if method == "HEAD" or answer.status in {101, 204, 304}:
        return answer
    if answer.get("transfer-encoding") == "chunked":
        while size := int(await reader.readuntil(b"\r\n"), 16):
            answer.body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    elif (length := answer.get("content-length")) is not None:
        answer.body = await reader.readexactly(int(length))
    else:
        answer.body = await reader.read()
    return answer
