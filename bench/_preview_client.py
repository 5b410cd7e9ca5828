"""The client of ``bench preview``: the same program beside the app and outside the sandbox. Standard library only.

Reads one line of JSON (address, headers, counts), prints one (lists of seconds).
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable

SIZE = 64 * 1024 * 1024


class Connection:
    """One keep-alive connection; as thin as can be, so that what is measured is not this."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    def ask(self, line: str, *more: str, body: bytes = b"") -> int:
        """Sends, reads the head of the answer; how much of its body is still to come."""
        extra = "".join(f"{each}\r\n" for each in more)
        self.socket.sendall(f"{line} HTTP/1.1\r\n{self._lines}{extra}\r\n".encode() + body)
        said = b""
        while b"\r\n\r\n" not in said:
            said += self.socket.recv(65_536)
        if said[9:12] not in (b"200", b"101"):
            raise RuntimeError(said.decode("latin-1"))
        head, _, rest = said.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return int(length or b"0") - len(rest)

    def read(self, size: int) -> None:
        buffer = bytearray(1 << 20)
        while size > 0:
            size -= self.socket.recv_into(buffer)


def timed(n: int, do: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(n):
        began = time.perf_counter()
        do()
        found.append(time.perf_counter() - began)
    return found


def get(connection: Connection) -> None:
    connection.read(connection.ask("GET /"))


def get_anew(port: int, headers: dict[str, str]) -> None:
    connection = Connection(port, headers)
    get(connection)
    connection.socket.close()


def download(connection: Connection) -> None:
    connection.read(connection.ask("GET /download"))


def upload(connection: Connection) -> None:
    connection.read(connection.ask("POST /upload", f"Content-Length: {SIZE}", body=bytes(SIZE)))


def echo(connection: Connection) -> None:
    connection.socket.sendall(b"x" * 64)
    connection.read(64)


def main() -> None:
    orders = json.loads(sys.stdin.readline())
    port, headers, n, large = orders["port"], orders["headers"], orders["n"], orders["large"]
    kept, upgraded = Connection(port, headers), Connection(port, headers)
    upgraded.ask(
        "GET /",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: " + "a" * 22 + "==",
    )
    get(kept)
    print(
        json.dumps(
            {
                "GET": timed(n, lambda: get(kept)),
                "GET, new connection": timed(n, lambda: get_anew(port, headers)),
                "WebSocket echo": timed(n, lambda: echo(upgraded)),
                "download 64 MiB": timed(large, lambda: download(kept)),
                "upload 64 MiB": timed(large, lambda: upload(kept)),
            }
        )
    )


if __name__ == "__main__":
    main()
