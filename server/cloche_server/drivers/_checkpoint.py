"""What saving a sandbox has in common for all runtimes: a directory that is whole or gone, commands that are bounded,
words for what went wrong, and a record that says what a start from it needs.

The commands die with this process (a parent-death signal), and nothing they do can stop a sandbox: a runtime that saves
memory lets the sandbox go on by itself, whoever asked for it.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from cloche.errors import ClocheError, Conflict, InternalError, InvalidRequest, StorageFull
from cloche_server.child_process import kill_and_drain
from cloche_server.drivers._cgroup_files import MEBIBYTE
from cloche_server.drivers._launch_orders import launcher_environment

RECORD: Final = "checkpoint.json"
UNFINISHED: Final = ".tmp"
"""Behind the name of a directory that is not whole yet."""

DISK: Final = "disk.img"
"""The sandbox's disk, where the driver saves files only."""

BOUND_S: Final = 60.0
BOUND_PER_GIB_S: Final = 30.0
"""A disk that writes 35 MB/s, and a minute for everything else. Measured: 0.1 to 0.3 s for 100 MB."""

FULL: Final = ("no space left on device", "disk quota exceeded")

HOST_CONNECTION: Final = "SCMConnectedEndpoint"
"""In the stack that the pinned runsc prints when it meets an open socket of the host."""

REMOVED_FILE: Final = "deleted and invalidated dentries"
"""What runsc calls an open file that has no name on the host any more."""

MAX_WORDS: Final = 600
"""Of a command's complaint. It begins with what is wrong; runsc goes on with its stack."""

TIED_TO_US: Final = ("/usr/bin/setpriv", "--pdeathsig", "KILL", "--")
"""In front of a command that is killed when this process dies."""


@dataclass(frozen=True, slots=True)
class Record:
    """``volumes`` are the places of its volumes: memory refers to them. ``sizes``: of every other file, in bytes. It is
    written last, so where it is, and agrees with them, the checkpoint is whole. ``runtime``: the version that saved it."""

    driver: str
    memory: bool
    disk_mb: int
    volumes: list[str]
    sizes: dict[str, int] = field(default_factory=dict)
    runtime: str = ""


def bound_s(size_bytes: int) -> float:
    """How long saving so much may take."""
    return BOUND_S + BOUND_PER_GIB_S * size_bytes / (1024 * MEBIBYTE)


def check_absent(directory: Path) -> None:
    """`InvalidRequest` when it is there: a rename would take the place of an empty one."""
    if directory.exists():
        raise InvalidRequest(f"a checkpoint cannot be made at {directory}: {os.strerror(errno.EEXIST)}")


@contextmanager
def new_directory(directory: Path) -> Iterator[None]:
    """``directory`` of mode 0700, gone again when the body fails. `InvalidRequest` when it is there or has no parent."""
    try:
        directory.mkdir(mode=0o700)
    except (FileExistsError, FileNotFoundError) as error:
        raise InvalidRequest(f"a checkpoint cannot be made at {directory}: {error.strerror}") from error
    except OSError as error:
        raise failure(f"a checkpoint cannot be made at {directory}", str(error)) from error
    try:
        yield
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise failure("the checkpoint could not be written", str(error)) from error
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


async def run_bounded(argv: Sequence[str], what: str, seconds: float) -> None:
    """Run a command to its end; `StorageFull` or `InternalError` with its words when it fails or takes too long.

    It is killed when this call is cancelled, and when this process dies.
    """
    process = await asyncio.create_subprocess_exec(
        *(*TIED_TO_US, *argv),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env=launcher_environment(),
    )
    try:
        async with asyncio.timeout(seconds):
            words = (await process.communicate())[1].decode(errors="replace").strip()
    except TimeoutError:
        raise took_too_long(what, seconds) from None
    finally:
        await kill_and_drain(process)
    if process.returncode != 0:
        raise failure(f"{what} failed", words or f"it ended with {process.returncode}")


def took_too_long(what: str, seconds: float) -> InternalError:
    return InternalError(f"{what} took more than {seconds:.0f} s and was given up", hint="try again")


def failure(what: str, words: str) -> ClocheError:
    """By the words of who failed."""
    said = words[:MAX_WORDS]
    if any(phrase in words.lower() for phrase in FULL):
        return StorageFull(f"{what}: the disk is full", hint="free some space", details={"output": said})
    if HOST_CONNECTION in words:
        return InternalError(
            f"{what}: a connection to the host is open; the runtime said: {said}",
            hint="close the uplinks and try again",
            details={"output": said, "reason": "open_uplinks"},
        )
    if REMOVED_FILE in words:
        return Conflict(
            f"{what}: a program has a file of a volume open that was removed; its memory cannot be saved",
            hint="close the file or end the program",
            details={"output": said, "reason": "removed_file_open"},
        )
    return InternalError(f"{what}: {said}", details={"output": said})


def write_record(directory: Path, record: Record) -> None:
    (directory / RECORD).write_text(json.dumps(asdict(record)))


def read_record(directory: Path) -> Record:
    """`InvalidRequest` when no checkpoint is there, or not all of it."""
    try:
        record = Record(**json.loads((directory / RECORD).read_text()))
        found = sizes_in(directory)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidRequest(f"no checkpoint at {directory}: {error}") from error
    for name, size in record.sizes.items():
        if found.get(name) != size:
            there = f"has {found[name]} of {size} bytes" if name in found else "is missing"
            raise InvalidRequest(f"the checkpoint at {directory} is not whole: {name} {there}")
    return record


def sizes_in(directory: Path) -> dict[str, int]:
    """Of all files but the record."""
    return {file.name: file.stat().st_size for file in sorted(directory.iterdir()) if file.name != RECORD}


def make_durable(directory: Path) -> None:
    """Blocks until no power failure can take anything of its files. Its own name is another directory's."""
    for path in (*directory.iterdir(), directory):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def names_and_size(directory: Path) -> tuple[tuple[str, ...], int]:
    """All files in it, and the bytes they take on the disk."""
    files = sorted(directory.iterdir())
    return tuple(file.name for file in files), sum(file.stat().st_blocks * 512 for file in files)


def allocated_bytes(file: Path) -> int:
    """On the disk; 0 when there is no such file."""
    try:
        return file.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def pause_of(directory: Path) -> float:
    """Seconds from the moment the runtime had made its files (it then asks the kernel inside to stand still) to the last
    write into them (it then lets it go on). As exact as file times: 4 ms."""
    begun = directory.stat().st_mtime
    return max(0.0, max((file.stat().st_mtime for file in directory.iterdir()), default=begun) - begun)


def sync_file_system(path: Path) -> None:
    """Write out what the file system of this directory holds back."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(descriptor)
