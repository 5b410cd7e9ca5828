"""Saving one sandbox: memory by its runtime (gVisor), or the image of its disk while it stands still (runc).

A server that dies between freezing and thawing must not leave a sandbox frozen for ever. So whoever freezes one for a
moment holds a lock on the file ``saving`` in its home; a later server that finds it frozen and the lock free thaws it
(`thaw_if_abandoned`). A sandbox that was paused on purpose has no such file.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from cloche.errors import InternalError, SandboxNotRunning
from cloche_server.drivers._cgroup import FREEZE_BOUND_S, Cgroup
from cloche_server.drivers._checkpoint import (
    DISK,
    HOST_CONNECTION,
    allocated_bytes,
    bound_s,
    failure,
    pause_of,
    run_bounded,
    sync_file_system,
    took_too_long,
)
from cloche_server.drivers._control import FILES, Control, ControlFailed, controlling
from cloche_server.drivers._layout import SandboxPaths
from cloche_server.drivers._runtimes import Runtime
from cloche_server.drivers._touching import touch_memory

CLOSING_TRIES: Final = 3
CLOSING_S: Final = 0.02
"""The guest closes all in a millisecond or two; a busy machine needs more."""

DYING_BOUND_S: Final = 2.0
"""A killed process that waits in the kernel for a disk; measured: a few milliseconds."""


async def save_memory(runtime: Runtime, paths: SandboxPaths, cgroup: Cgroup, directory: Path) -> float:
    """The seconds it stood still. A frozen sandbox cannot save itself, so it runs: from the moment when it has its order,
    and lets nothing run, until it is frozen again right behind its answer."""
    usage = cgroup.usage()
    seconds = bound_s(usage.memory_bytes if usage else 0)
    was_frozen = cgroup.is_frozen()
    normal_bytes = json.loads(paths.orders.read_text())["memory_bytes"]
    try:
        with cgroup.extra_memory(normal_bytes):
            async with _touched(paths), controlling(runtime.control(paths)) as sandbox, asyncio.timeout(seconds):
                await _save_once_closed(sandbox, directory, cgroup.thaw if was_frozen else lambda: None)
    except TimeoutError:
        raise took_too_long("saving memory", seconds) from None
    except ControlFailed as error:
        raise failure("saving memory failed", str(error)) from error
    finally:
        if was_frozen:
            with suppress(SandboxNotRunning):
                await freeze(cgroup)
    return pause_of(directory)


async def _save_once_closed(sandbox: Control, directory: Path, asked: Callable[[], None]) -> None:
    """A guest that is just closing its connections to the host is given the time. A refusal comes after some 8 ms."""
    for _ in range(CLOSING_TRIES):
        try:
            await sandbox.save(directory, asked)
        except ControlFailed as error:
            if HOST_CONNECTION not in str(error):
                raise
        else:
            return
        for name in FILES:
            (directory / name).unlink()
        await asyncio.sleep(CLOSING_S)
    await sandbox.save(directory, asked)


@asynccontextmanager
async def _touched(paths: SandboxPaths) -> AsyncIterator[None]:
    """The memory is looked at while the state of the kernel is saved; what is not by the end of the body never is."""
    enough = threading.Event()
    looking = asyncio.create_task(asyncio.to_thread(touch_memory, int(paths.pid.read_text()), enough))
    try:
        yield
    finally:
        enough.set()
        await asyncio.wait([looking])


async def save_disk(paths: SandboxPaths, cgroup: Cgroup, pid: int, directory: Path, *, go_on: bool) -> float:
    """The seconds it stood still. What waits in the page cache is written before and, the rest, while it is frozen."""
    root = Path(f"/proc/{pid}/root")
    copy = ("/bin/cp", "--sparse=always", "--reflink=auto", str(paths.disk), str(directory / DISK))
    await asyncio.to_thread(sync_file_system, root)
    begun = time.monotonic()
    async with standing_still(paths, cgroup, go_on=go_on):
        await asyncio.to_thread(sync_file_system, root)
        await run_bounded(copy, "copying the disk", bound_s(allocated_bytes(paths.disk)))
    return time.monotonic() - begun


@asynccontextmanager
async def standing_still(paths: SandboxPaths, cgroup: Cgroup, *, go_on: bool) -> AsyncIterator[None]:
    """Frozen in the body. Afterwards as before, but without ``go_on`` it stays frozen when all went well."""
    if cgroup.is_frozen():
        yield
        return
    with _saving(paths):
        await freeze(cgroup)
        try:
            yield
        except BaseException:
            cgroup.thaw()
            raise
        if go_on:
            cgroup.thaw()


async def freeze(cgroup: Cgroup) -> None:
    """`InternalError` when a process does not stand still; all go on then."""
    try:
        await cgroup.freeze()
    except TimeoutError:
        what = f"{cgroup.oci_path} could not be frozen in {FREEZE_BOUND_S:.0f} s"
        raise InternalError(what, hint="a process waits in the kernel; try again") from None
    except FileNotFoundError:
        raise SandboxNotRunning(f"{cgroup.oci_path} is gone: nothing runs") from None


@contextmanager
def _saving(paths: SandboxPaths) -> Iterator[None]:
    descriptor = os.open(paths.saving, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        paths.saving.unlink(missing_ok=True)
        os.close(descriptor)


async def thaw_if_abandoned(paths: SandboxPaths, cgroup: Cgroup) -> None:
    """Let it go on when it was frozen by a server that died while it saved. One that lives is left alone: it is waited
    for a moment, since a server that is being killed may hold the lock until its last thread has ended."""
    with suppress(FileNotFoundError, TimeoutError):
        async with asyncio.timeout(DYING_BOUND_S):
            while not _thaw_if_free(paths, cgroup):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


def _thaw_if_free(paths: SandboxPaths, cgroup: Cgroup) -> bool:
    descriptor = os.open(paths.saving, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        cgroup.thaw()
        paths.saving.unlink(missing_ok=True)
        return True
    finally:
        os.close(descriptor)
