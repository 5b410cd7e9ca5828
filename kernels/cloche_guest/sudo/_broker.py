"""The guest's side of sudo: a Unix socket, one connection a command.

The client sends one message: JSON ``{arguments, env, cwd}`` on one line, with three descriptors. The guest answers
``{"started": pid}``, then ``{"code": n}`` or ``{"signal": n}`` when the command ends; or ``{"refused": text}``, or
``{"text": text}`` when there was nothing to start. Meanwhile the client may send ``{"signal": n}`` lines for the
command's group. A client that goes away hangs up: the group gets SIGHUP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from cloche_guest.children import Account, Child, Children, ExitStatus
from cloche_guest.sudo._request import Order, SudoUsage, read_order

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""Arguments and environment of an exec are together below 2 MiB by default (ARG_MAX); JSON may double that."""

ARRIVAL_TIMEOUT_S: Final = 10.0


class _Request(BaseModel):
    model_config = ConfigDict(defer_build=True)

    arguments: list[str]
    env: dict[str, str]
    cwd: str


class _Signal(BaseModel):
    model_config = ConfigDict(defer_build=True)

    signal: int


class SudoBroker:
    """Serves while open; ``allowed`` and ``environment`` are asked anew for every command."""

    def __init__(
        self, path: Path, children: Children, *, allowed: Callable[[], bool], environment: Callable[[], dict[str, str]]
    ) -> None:
        self._path = path
        self._children = children
        self._allowed = allowed
        self._environment = environment
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._commands: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Listen. Everybody in the sandbox may connect; whether they may do more is asked per command."""
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setblocking(False)
        self._socket.bind(str(self._path))
        self._path.chmod(0o666)
        self._socket.listen(64)
        self._accepting = asyncio.create_task(self._accept(self._socket), name="sudo")

    async def close(self) -> None:
        """Stop listening and hang up on what still runs."""
        tasks = [task for task in (self._accepting, *self._commands) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
            self._path.unlink(missing_ok=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(listener)
            task = asyncio.create_task(self._serve(connection), name="sudo command")
            self._commands.add(task)
            task.add_done_callback(self._commands.discard)

    async def _serve(self, connection: socket.socket) -> None:
        with contextlib.closing(connection), contextlib.suppress(OSError):
            descriptors: list[int] = []
            try:
                line = await self._receive(connection, descriptors)
                answer, child = self._start(line, descriptors)
            except (TimeoutError, ValueError) as error:
                answer, child = {"refused": f"sudo: {error}"}, None
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            await _send(connection, answer)
            if child is not None:
                await self._attend(connection, child)

    async def _receive(self, connection: socket.socket, descriptors: list[int]) -> bytes:
        """The request's line; its descriptors go into the list, so that they are closed whatever happens."""
        connection.setblocking(False)
        message = b""
        async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
            while not message.endswith(b"\n"):
                await _readable(connection)
                data, received, _, _ = socket.recv_fds(connection, 65536, 3)
                descriptors += received
                message += data
                if not data or len(message) > MAX_MESSAGE_BYTES or len(descriptors) > 3:
                    raise ValueError("the request did not arrive whole")
        return message

    def _start(self, line: bytes, descriptors: list[int]) -> tuple[dict[str, object], Child | None]:
        """The first answer, and the command if one was started."""
        if not self._allowed():
            return {"refused": "sudo: this sandbox was created without sudo"}, None
        try:
            request = _Request.model_validate_json(line)
            order = read_order(request.arguments, request.env, self._environment(), find_account)
        except ValidationError:
            return {"refused": "sudo: the request is not understood"}, None
        except SudoUsage as usage:
            return {"refused": str(usage)}, None
        if not order.argv:
            return {"text": order.text}, None
        return self._spawn(order, request.cwd, descriptors)

    def _spawn(self, order: Order, cwd: str, descriptors: list[int]) -> tuple[dict[str, object], Child | None]:
        if len(descriptors) != 3:
            return {"refused": f"sudo: three descriptors are needed, {len(descriptors)} came"}, None
        stdin, stdout, stderr = descriptors
        env = {"PATH": os.defpath, **order.env}
        try:
            child = self._children.spawn(
                [_find(order.argv[0], env), *order.argv[1:]],
                cwd=order.cwd or cwd,
                env=env,
                account=order.account,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
            )
        except (OSError, ValueError) as error:
            return {"refused": f"sudo: {order.argv[0]}: {getattr(error, 'strerror', None) or error}"}, None
        return {"started": child.pid}, child

    async def _attend(self, connection: socket.socket, child: Child) -> None:
        """Pass signals on until the command has ended; hang up on it when the client, or the guest, goes."""
        listening = asyncio.create_task(self._pass_signals(connection, child))
        try:
            await asyncio.wait((listening, child.exited), return_when=asyncio.FIRST_COMPLETED)
            if child.exited.done():
                await _send(connection, _ended(child.exited.result()))
        finally:
            listening.cancel()
            child.signal_group(signal.SIGHUP)
            await asyncio.gather(listening, return_exceptions=True)

    async def _pass_signals(self, connection: socket.socket, child: Child) -> None:
        loop = asyncio.get_running_loop()
        pending = b""
        while data := await loop.sock_recv(connection, 4096):
            *lines, pending = (pending + data)[-4096:].split(b"\n")
            for line in lines:
                with contextlib.suppress(ValidationError, ValueError):
                    child.signal_group(signal.Signals(_Signal.model_validate_json(line).signal))


def find_account(name: str) -> Account | None:
    """An account of the sandbox by name, or by number as ``#1000``."""
    try:
        entry = pwd.getpwuid(int(name[1:])) if name.startswith("#") else pwd.getpwnam(name)
    except (KeyError, ValueError):
        return None
    return Account(entry.pw_uid, entry.pw_gid, entry.pw_dir, entry.pw_name)


def _find(program: str, env: Mapping[str, str]) -> str:
    """Look the program up in the order's own PATH, which is not the guest's."""
    found = shutil.which(program, path=env["PATH"])
    if found is None:
        raise ValueError("command not found")
    return found


def _ended(status: ExitStatus) -> dict[str, object]:
    return {"signal": status.signal} if status.signal is not None else {"code": status.code}


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(connection, _finish, ready)
    try:
        await ready
    finally:
        loop.remove_reader(connection)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _send(connection: socket.socket, answer: Mapping[str, object]) -> None:
    await asyncio.get_running_loop().sock_sendall(connection, json.dumps(answer).encode() + b"\n")
