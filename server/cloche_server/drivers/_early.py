"""A start that begins before its checkpoint is written: the runtime has made all of the sandbox but its processes, and its
restoring command is already there when the last byte is.

That command costs 20 ms before it does anything (on a busy machine more), so it is started ahead. What keeps it from
going on is the runtime's own lock on the state of the sandbox, which it needs for its first step and which is ours until then.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from cloche_server.drivers._checkpoint import TIED_TO_US
from cloche_server.drivers._launch_orders import launcher_environment
from cloche_server.drivers._layout import SandboxPaths

LOCKS: Final = "*.lock"
"""In the runtime's directory; one for each of its sandboxes, and there is one."""


class RestoreFailed(Exception):
    """The message says how the command ended; ``output`` is its words."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


async def restore_when_saved(
    paths: SandboxPaths, argv: Sequence[str], saved: asyncio.Future[None], bound_s: Callable[[], float]
) -> None:
    """Returns when the sandbox runs. ``bound_s`` is asked once everything is saved.

    Raises what ``saved`` does, what ``bound_s`` does, and `RestoreFailed`. The command ends with this call, and with this
    process.
    """
    with _state_held(paths) as let_go:
        if let_go is None:
            await asyncio.shield(saved)
        command = await asyncio.create_subprocess_exec(
            *(*TIED_TO_US, *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=launcher_environment(),
        )
        try:
            await asyncio.shield(saved)
            seconds = bound_s()
            if let_go is not None:
                let_go()
            await _succeed(command, seconds)
        finally:
            if command.returncode is None:
                command.kill()
                await command.wait()


async def _succeed(command: asyncio.subprocess.Process, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            words = (await command.communicate())[1].decode(errors="replace").strip()
    except TimeoutError:
        raise RestoreFailed(f"no sandbox after {seconds:.0f} s", "") from None
    if command.returncode != 0:
        raise RestoreFailed(f"the runtime ended with {command.returncode}", words)


@contextmanager
def _state_held(paths: SandboxPaths) -> Iterator[Callable[[], None] | None]:
    """How to let go of the state; None when it cannot be held, and a command must not be started too soon."""
    descriptors = [os.open(path, os.O_RDWR | os.O_CLOEXEC) for path in paths.runtime.glob(LOCKS)]
    try:
        yield (lambda: _unlock(descriptors)) if descriptors and _lock(descriptors) else None
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _lock(descriptors: Sequence[int]) -> bool:
    """False when another has one of them."""
    try:
        for descriptor in descriptors:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _unlock(descriptors)
        return False
    return True


def _unlock(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
