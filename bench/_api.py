"""Thin HTTP calls to the server: what is measured is not the client, and a hundred of them can be made at once.

The standard library alone; every connection is kept open, and small requests leave at once.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from typing import Any
from urllib.parse import urlsplit

from cloche import Client

Answer = tuple[int, Any]


class Api:
    """Blocking. Close it."""

    def __init__(self, client: Client) -> None:
        url = urlsplit(client.url)
        self.host, self.port = url.hostname or "127.0.0.1", url.port or 80
        self.headers = {"Content-Type": "application/json", **dict(client._link.auth_headers)}
        self._connection = http.client.HTTPConnection(self.host, self.port, timeout=150)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of a good answer; `RuntimeError` with the server's words for another."""
        if self._connection.sock is None:
            self._connection.connect()
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        content = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, content, self.headers)
            answer = self._connection.getresponse()
        except http.client.RemoteDisconnected:  # it was idle for longer than the server keeps connections
            self._connection.close()
            return self.call(method, path, body)
        raw = answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {raw[:500].decode()}")
        return json.loads(raw) if raw else None

    def close(self) -> None:
        self._connection.close()


class AsyncConnection:
    """One connection for calls one after the other."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def open(self) -> AsyncConnection:
        self._reader, self._writer = await asyncio.open_connection(self._api.host, self._api.port)
        return self

    async def call(self, method: str, path: str, body: object = None) -> Answer:
        """Status and JSON."""
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._api.host}:{self._api.port}"]
        lines += [f"{name}: {value}" for name, value in self._api.headers.items()]
        lines += [f"Content-Length: {len(content)}", "", ""]
        self._writer.write("\r\n".join(lines).encode() + content)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        raw = await self._reader.readexactly(int(fields.get("content-length", "0")))
        return int(head[0].split()[1]), json.loads(raw) if raw else None

    def close(self) -> None:
        self._writer.close()
