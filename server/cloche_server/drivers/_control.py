"""runsc's control socket, spoken directly: what its commands ``checkpoint`` and ``restore`` ask of a sandbox, without the
20 to 30 ms in which each of them starts, reads the sandbox's state and ends.

A call is one JSON object, ``{"method", "arg"}``, with descriptors beside its first byte (SCM_RIGHTS). The answer is one, too:
``{"success", "err"}``. Both are of the pinned release (its pkg/urpc and runsc/boot/controller.go); a save needs the same
release to be restored anyway.

Who hangs up changes nothing: a save, or a restore, that has begun goes on to its end.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

FILES: Final = ("checkpoint.img", "pages_meta.img", "pages.img")
"""Of a checkpoint, in the order in which runsc wants their descriptors. Its commands give them the same names."""

MAX_ANSWER_BYTES: Final = 1 << 20
"""A failure comes with the stack of the runtime, some 10 KB."""

AGAIN_S: Final = 0.004
"""Between two tries to connect to a sandbox that is being made. A try takes 0.15 ms, beside a source that is saved."""

SAVE: Final = {
    "key": None,
    "metadata": {"compression": "none"},
    "MemoryFileSaveOpts": {"ExcludeCommittedZeroPages": False},
    "have_pages_file": True,
    "Resume": True,
}
RESTORE: Final = {"HavePagesFile": True, "HaveDeviceFile": False}


def _route(address: str, mask: bytes) -> dict[str, Any]:
    return {"Destination": {"IP": address, "Mask": base64.b64encode(mask).decode()}, "Gateway": ""}


LOOPBACK: Final = {
    "LoopbackLinks": [
        {
            "Name": "lo",
            "Addresses": [{"Address": "127.0.0.1", "PrefixLen": 8}, {"Address": "::1", "PrefixLen": 128}],
            "Routes": [_route("127.0.0.0", bytes([255, 0, 0, 0])), _route("::1", bytes([255] * 16))],
        }
    ]
}
"""What every start of a sandbox without a network gets."""


class ControlFailed(Exception):
    """The message is the runtime's own words, or says that it went away."""


class Control:
    """One connection. Calls are made one after the other."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    async def save(self, directory: Path, asked: Callable[[], None] = lambda: None) -> None:
        """Writes `FILES`, and the sandbox goes on. ``asked`` is called when the runtime has its order. `ControlFailed`, or
        `OSError` when they cannot be made."""
        with _opened(directory, os.O_RDWR | os.O_CREAT | os.O_EXCL) as files:
            await self._call("containerManager.Checkpoint", SAVE, files, asked)

    async def add_loopback(self) -> None:
        """Of a sandbox that was made and has not begun; before `restore`."""
        await self._call("Network.CreateLinksAndRoutes", LOOPBACK)

    async def restore(self, directory: Path) -> None:
        """Returns when the processes run. `ControlFailed`, or `OSError` when a file is not there."""
        with _opened(directory, os.O_RDONLY) as files:
            await self._call("containerManager.Restore", RESTORE, files)

    async def _call(
        self,
        method: str,
        argument: Mapping[str, Any],
        files: Sequence[int] = (),
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        """Few bytes: a new socket takes them at once."""
        call = json.dumps({"method": method, "arg": argument}).encode()
        try:
            socket.send_fds(self._connection, [call], files)
            asked()
            answer = await self._answer()
        except OSError as error:
            raise ControlFailed(f"the sandbox' runtime went away: {error.strerror}") from error
        if answer.get("success") is not True:
            raise ControlFailed(str(answer.get("err", "it failed and did not say why")))

    async def _answer(self) -> dict[str, Any]:
        got = b""
        while len(got) < MAX_ANSWER_BYTES:
            some = await asyncio.get_running_loop().sock_recv(self._connection, 65_536)
            if not some:
                raise ControlFailed("the sandbox' runtime went away")
            got += some
            with suppress(ValueError):  # there is more to come
                answer = json.loads(got)
                return answer if isinstance(answer, dict) else {}
        raise ControlFailed("the sandbox' runtime does not stop talking")


@asynccontextmanager
async def controlling(path: Path) -> AsyncIterator[Control]:
    """`OSError` when nobody listens. By way of a descriptor: a socket's path may have 107 bytes only."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, f"/proc/self/fd/{directory}/{path.name}")
            yield Control(connection)
    finally:
        os.close(directory)


async def until_listening(path: Path, making: asyncio.Task[None]) -> None:
    """Raises what ``making`` does. When that has ended well, whoever connects next finds out."""
    while not making.done():
        with suppress(OSError):
            async with controlling(path):
                return
        await asyncio.wait((making,), timeout=AGAIN_S)
    await making


@contextmanager
def _opened(directory: Path, flags: int) -> Iterator[list[int]]:
    descriptors: list[int] = []
    try:
        for name in FILES:
            descriptors.append(os.open(directory / name, flags | os.O_CLOEXEC, 0o600))
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
