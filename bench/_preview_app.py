"""The app of ``bench preview``, run in the sandbox: as little of its own as HTTP allows. Standard library only.

GET / answers at once, GET /download with 64 MiB, POST /upload reads everything, and an upgrade echoes bytes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import sys

SIZE = 64 * 1024 * 1024
BLOCK = bytes(1024 * 1024)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            await answer(head.split(" ")[1], headers, reader, writer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def answer(
    path: str, headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    if headers.get("upgrade") == "websocket":
        await echo(headers["sec-websocket-key"], reader, writer)
    elif path == "/download":
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n".encode())
        for _ in range(SIZE // len(BLOCK)):
            writer.write(BLOCK)
            await writer.drain()
    else:
        left = int(headers.get("content-length", "0"))
        while left:
            left -= len(await reader.read(min(left, 1 << 18)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")


async def echo(key: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # The head was read in lower case; the client's key has no capitals.
    digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode(), usedforsecurity=False).digest()
    accept = base64.b64encode(digest).decode()
    head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    writer.write(f"{head}Sec-WebSocket-Accept: {accept}\r\n\r\n".encode())
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    raise ConnectionError


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), limit=1 << 20)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
