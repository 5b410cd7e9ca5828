"""The server's end of uplinks, just enough of it for tests of the guest."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Hub:
    """Accepts uplinks; `refuse` says why it does not want one. `identity`: fields of the one it expects and gives; without
    it every guest is who it says it is. `previous`: sandbox id and epoch of a checkpoint, whose guest is reborn."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hellos: list[dict[str, Any]] = []
        self.idle: asyncio.Queue[Connection] = asyncio.Queue()
        self.refuse: str | None = None
        self.refused = asyncio.Event()
        self.identity: dict[str, Any] | None = None
        self.previous: tuple[str, str] | None = None
        self._server: asyncio.Server | None = None
        self._greetings: set[asyncio.Task[None]] = set()
        self._open: list[Connection] = []

    async def open(self) -> None:
        self._server = await asyncio.start_unix_server(self._welcome, self.path)

    async def close(self) -> None:
        """As a server that is killed: the socket and all connections are gone."""
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)
        for greeting in list(self._greetings):  # one that comes after this would stay open
            greeting.cancel()
        await asyncio.gather(*self._greetings, return_exceptions=True)
        for _, writer in self._open:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        self._open.clear()
        self._forget_idle()

    async def stop_listening(self) -> None:
        """New connections are refused; those that are open stay."""
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)
        self._forget_idle()

    async def all_closed(self) -> None:
        """Return when the guest has closed every connection."""
        while self._greetings:
            await asyncio.wait(self._greetings)
        for reader, writer in self._open:
            with contextlib.suppress(OSError):
                while await reader.read(65536):
                    pass
            writer.close()
        self._open.clear()
        self._forget_idle()

    async def take(self) -> Connection:
        return await asyncio.wait_for(self.idle.get(), 60)

    def _forget_idle(self) -> None:
        while not self.idle.empty():
            self.idle.get_nowait()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._greetings.add(task)
        task.add_done_callback(self._greetings.discard)
        self._open.append((reader, writer))
        line = await reader.readline()
        if not line:
            return
        self.hellos.append(json.loads(line))
        hello = self.hellos[-1]
        given = self.identity or {"sandbox_id": hello["sandbox_id"], "epoch": hello["epoch"]}
        said = (hello["sandbox_id"], hello["epoch"])
        is_reborn = said == self.previous
        refuse = self.refuse if is_reborn or said == (given["sandbox_id"], given["epoch"]) else "not you"
        if refuse is not None:
            writer.write(json.dumps({"refused": refuse}).encode() + b"\n")
            writer.close()
            self.refused.set()
            return
        identity = {"env": {"GIVEN": "by the server"}, "sudo": False, "now": "2026-01-01T00:00:00Z"} | given
        writer.write(json.dumps({"identity": identity, "reborn": is_reborn}).encode() + b"\n")
        if is_reborn:
            writer.close()
        else:
            await self.idle.put((reader, writer))


async def call(connection: Connection, method: str, path: str, body: object = None) -> Any:
    reader, writer = connection
    content = json.dumps(body).encode() if body is not None else b""
    head = f"{method} {path} HTTP/1.1\r\nHost: guest\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    size = next((int(line.split()[1]) for line in lines if line.lower().startswith(b"content-length")), 0)
    return json.loads(await reader.readexactly(size) or b"null")
