"""The server's end of uplinks, just enough of it for tests of the guest."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Hub:
    """Accepts uplinks; `refuse` says why it does not want one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hellos: list[dict[str, Any]] = []
        self.idle: asyncio.Queue[Connection] = asyncio.Queue()
        self.refuse: str | None = None
        self.refused = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._all: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._welcome, self.path)

    async def close(self) -> None:
        """As a server that is killed: the socket and all connections are gone."""
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)
        for writer in self._all:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        self._all.clear()
        while not self.idle.empty():
            self.idle.get_nowait()

    async def take(self) -> Connection:
        return await asyncio.wait_for(self.idle.get(), 20)

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._all.append(writer)
        line = await reader.readline()
        if not line:
            return
        self.hellos.append(json.loads(line))
        if self.refuse is not None:
            writer.write(json.dumps({"refused": self.refuse}).encode() + b"\n")
            writer.close()
            self.refused.set()
            return
        identity = {
            "sandbox_id": "b" * 20,
            "epoch": "e2",
            "env": {"GIVEN": "by the server"},
            "sudo": False,
            "now": "2026-01-01T00:00:00Z",
        }
        writer.write(json.dumps({"identity": identity}).encode() + b"\n")
        await self.idle.put((reader, writer))


async def call(connection: Connection, method: str, path: str, body: object = None) -> Any:
    reader, writer = connection
    content = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: guest\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    size = next(int(line.split()[1]) for line in lines if line.lower().startswith(b"content-length"))
    return json.loads(await reader.readexactly(size))
