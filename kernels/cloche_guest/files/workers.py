"""The guest's side of workers: started when they are needed, one for each user, and connections for operations.

Why a process of the user, and not the guest with the user's id for a moment: the guest is root. Were it to open a path of
the user, a link in that path would lead it wherever root may go; setfsuid changes one thread of a program whose other
threads stay root, and covers neither subprocesses nor everything /proc decides by. In the worker the kernel decides, as
for any program of the user; its errors are the user's, and what it writes is the user's. What the user does to the
worker (stop, kill, debug it: same uid) costs the user's operations and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Final, Self

from cloche.errors import ERRORS, ClocheError, FileFailed, LimitReached, PermissionDenied, WaitTimeout
from cloche_guest.children import Account, Child, Children, groups_of
from cloche_guest.files.frames import CHUNK, DATA, END, HEADER, JSON, MAX_FRAME_BYTES, encode

MAX_OPERATIONS: Final = 64
"""At the same time. Each is a thread of a worker; a client that wants more is told to wait."""

MAX_WATCHES: Final = 32

Json = dict[str, Any]


class Operation:
    """One operation, as an async context manager; leaving gives up what is not done yet."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, released: Callable[[], None]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._released = released
        self._early: asyncio.Task[Json] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        released, self._released = self._released, _nothing
        released()
        if self._early is not None:
            self._early.cancel()
        self._writer.transport.abort()

    async def answer(self, bound_s: float) -> Json:
        """The next JSON of the worker.

        Raises:
            ClocheError: its typed error; WaitTimeout after `bound_s`; FileFailed when the worker ended.
        """
        if self._early is not None:
            waiting, self._early = self._early, None
        else:
            waiting = asyncio.ensure_future(self._json())
        try:
            async with asyncio.timeout(bound_s):
                return await waiting
        except TimeoutError:
            message = f"the file operation was not done within {bound_s:g} s"
            raise WaitTimeout(message, details={"bound_s": bound_s}) from None
        finally:
            waiting.cancel()

    async def data(self) -> AsyncIterator[bytes]:
        """Data frames until the end.

        Raises:
            ClocheError: in place of the end.
        """
        while True:
            kind, payload = await self._frame()
            if kind == DATA:
                yield payload
            elif kind == END:
                return
            else:
                raise _error_in(_loaded(payload)) or _lost()

    async def mixed(self) -> AsyncIterator[tuple[bool, Json]]:
        """JSON in data frames (True), and one result at last (False)."""
        while True:
            kind, payload = await self._frame()
            value = _loaded(payload)
            error = _error_in(value)
            if error is not None:
                raise error
            yield kind == DATA, value
            if kind != DATA:
                return

    async def send(self, data: bytes) -> bool:
        """Data for the worker; waits while it cannot keep up. False: it has answered already, and wants no more."""
        if self._early is None:
            self._early = asyncio.ensure_future(self._json())
        for start in range(0, len(data), CHUNK):
            if self._early.done():
                return False
            self._writer.write(encode(DATA, data[start : start + CHUNK]))
            await self._drain()
        return not self._early.done()

    async def end(self) -> None:
        """No more data."""
        self._writer.write(encode(END))
        await self._drain()

    async def begin(self, order: Json) -> None:
        """Say what is to be done."""
        self._writer.write(encode(JSON, json.dumps(order).encode()))
        await self._drain()

    async def _drain(self) -> None:
        with contextlib.suppress(ConnectionError):  # what the worker said before it closed is still to be read
            await self._writer.drain()

    async def _json(self) -> Json:
        kind, payload = await self._frame()
        if kind != JSON:
            raise _lost()
        value = _loaded(payload)
        error = _error_in(value)
        if error is not None:
            raise error
        return value

    async def _frame(self) -> tuple[bytes, bytes]:
        try:
            kind, size = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            if size > MAX_FRAME_BYTES:
                raise _lost()
            return kind, await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise _lost() from error


def _nothing() -> None:
    pass


def _lost() -> FileFailed:
    return FileFailed(
        "the worker process for files ended in the middle of the operation",
        hint="something in the sandbox may have killed it; try again",
        details={"errno": "EPIPE"},
    )


def _error_in(value: Json) -> ClocheError | None:
    error = value.get("error")
    if error is None:
        return None
    if not isinstance(error, dict) or not isinstance(details := error.get("details"), dict):
        raise _lost()
    return ERRORS.get(str(error.get("code")), FileFailed)(str(error.get("message")), details=details)


def _loaded(payload: bytes) -> Json:
    """The worker is in the user's hands: what it says is checked."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        raise _lost() from None
    if not isinstance(value, dict):
        raise _lost()
    return value


class FileWorkers:
    """Starts workers. ``account`` None: the guest's own user is the only one there is.

    Args:
        may_be_root: whether the sandbox has sudo now.
    """

    def __init__(self, children: Children, *, account: Account | None, may_be_root: Callable[[], bool]) -> None:
        self._children = children
        self._account = account
        self._may_be_root = may_be_root
        self._workers: dict[str, tuple[Child, socket.socket]] = {}
        self._operations = 0

    async def operation(self, user: str, order: Json, *, counted: bool = True) -> Operation:
        """Start one. Enter what it returns.

        Raises:
            PermissionDenied: root, in a sandbox without sudo.
            LimitReached: `MAX_OPERATIONS`.
        """
        if user == "root" and not self._may_be_root():
            raise PermissionDenied(
                "this sandbox was created without sudo: there is no root for its files",
                details={"user": "root", "path": str(order.get("path", ""))[:300], "errno": "EPERM"},
            )
        if counted and self._operations >= MAX_OPERATIONS:
            raise LimitReached(
                f"{MAX_OPERATIONS} file operations are going on",
                details={"limit": MAX_OPERATIONS, "kind": "operations"},
            )
        ours, theirs = socket.socketpair()
        with theirs:
            self._hand_over(user, theirs)
        ours.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=ours, limit=CHUNK)
        if counted:
            self._operations += 1
        operation = Operation(reader, writer, self._release if counted else _nothing)
        await operation.begin(order)
        return operation

    def close(self) -> None:
        """End all workers."""
        for child, control in self._workers.values():
            control.close()
            child.signal_group(9)
        self._workers.clear()

    def _release(self) -> None:
        self._operations -= 1

    def _hand_over(self, user: str, connection: socket.socket) -> None:
        try:
            socket.send_fds(self._control(user), [b"."], [connection.fileno()])
        except (BrokenPipeError, ConnectionResetError):  # it ended, and nobody has noticed yet
            self._workers.pop(user)[1].close()
            socket.send_fds(self._control(user), [b"."], [connection.fileno()])

    def _control(self, user: str) -> socket.socket:
        present = self._workers.get(user)
        if present is not None and not present[0].exited.done():
            return present[1]
        if present is not None:
            present[1].close()
        account = self._account if user == "user" else None
        ours, theirs = socket.socketpair()
        with theirs:
            child = self._children.spawn(
                [sys.executable, "-I", "-m", "cloche_guest.files.worker", str(theirs.fileno()), *_becoming(account)],
                cwd="/",
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
                account=None,  # it becomes the user itself, when it has read its code; see its `main`
                stdout=2,
                stderr=2,
                pass_fds=[theirs.fileno()],
            )
        self._workers[user] = child, ours
        return ours


def _becoming(account: Account | None) -> list[str]:
    if account is None:
        return []
    return [str(account.uid), str(account.gid), ",".join(map(str, groups_of(account)))]
