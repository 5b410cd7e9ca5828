"""The worker's end of one operation."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import stat
from collections.abc import Iterator
from typing import Any, Final

from cloche_guest.files.frames import CHUNK, DATA, END, HEADER, JSON, encode

Json = dict[str, Any]

CODES: Final = {
    "ENOENT": "not_found",
    "EACCES": "permission_denied",
    "EPERM": "permission_denied",
    "EROFS": "permission_denied",
    "EISDIR": "is_directory",
    "ENOTDIR": "not_directory",
    "EEXIST": "already_exists",
    "ENOTEMPTY": "not_empty",
    "ENOSPC": "no_space",
    "EDQUOT": "no_space",
    "ENXIO": "not_regular_file",
    "EMFILE": "limit_reached",
    "ENFILE": "limit_reached",
}


class Refused(Exception):
    """A typed error for the guest."""

    def __init__(self, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


class Hangup(Exception):
    """The guest gave the operation up."""


class Channel:
    """Blocking; one thread. Errors of the connection are `Hangup`."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def fileno(self) -> int:
        return self._socket.fileno()

    def answer(self, result: Json) -> None:
        self._send(encode(JSON, json.dumps(result).encode()))

    def data(self, data: bytes) -> None:
        self._send(encode(DATA, data))

    def end(self) -> None:
        self._send(encode(END))

    def request(self) -> Json:
        kind, payload = self._frame()
        if kind != JSON:
            raise Hangup
        found: Json = json.loads(payload)
        return found

    def body(self) -> Iterator[bytes]:
        """The data the guest sends, to its end."""
        while True:
            kind, payload = self._frame()
            if kind == END:
                return
            yield payload

    def check(self) -> None:
        """Called now and then by operations that neither send nor receive: `Hangup` when nobody waits any more."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP | select.POLLHUP)
        if poll.poll(0):
            raise Hangup

    def _send(self, frame: bytes) -> None:
        try:
            self._socket.sendall(frame)
        except OSError as error:
            raise Hangup from error

    def _frame(self) -> tuple[bytes, bytes]:
        kind, size = HEADER.unpack(self._exactly(HEADER.size))
        return kind, self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            try:
                count = self._socket.recv_into(view)
            except OSError as error:
                raise Hangup from error
            if not count:
                raise Hangup
            view = view[count:]
        return bytes(buffer)


def refusal(error: OSError, path: str) -> Refused:
    """The typed error for what the system said of `path`."""
    name = errno_name(error)
    text = error.strerror or str(error)
    code = CODES.get(name, "file_failed")
    return Refused(code, f"{printable(path)}: {text}", errno=name)


def errno_name(error: OSError) -> str:
    import errno  # noqa: PLC0415 - 'errno' is also what everybody calls a number

    return errno.errorcode.get(error.errno or 0, "EIO")


def printable(path: str) -> str:
    """A path for a message."""
    return "".join(c if c.isprintable() and not "\udc80" <= c <= "\udcff" else "\ufffd" for c in path[:300])


@contextlib.contextmanager
def speaking_of(path: str) -> Iterator[None]:
    """Errors of the system become typed ones about `path`."""
    try:
        yield
    except OSError as error:
        raise refusal(error, path) from error


def open_regular(path: str, flags: int, *, dir_fd: int | None = None) -> int:
    """A descriptor of a regular file. Never waits: FIFOs would, and devices may do anything when they are read.

    Raises:
        Refused: it is something else.
    """
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666, dir_fd=dir_fd)
    kind = os.fstat(fd).st_mode
    if stat.S_ISREG(kind):
        return fd
    os.close(fd)
    code = "is_directory" if stat.S_ISDIR(kind) else "not_regular_file"
    raise Refused(code, f"{printable(path)} is {'a directory' if stat.S_ISDIR(kind) else 'no regular file'}")


def copy_out(fd: int, size: int | None, channel: Channel) -> int:
    """Send `size` bytes (None: all there are) of `fd`. The bytes sent; fewer when the file ended early."""
    sent = 0
    while size is None or sent < size:
        data = os.read(fd, CHUNK if size is None else min(CHUNK, size - sent))
        if not data:
            break
        channel.data(data)
        sent += len(data)
    return sent
