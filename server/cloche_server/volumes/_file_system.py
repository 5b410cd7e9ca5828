"""Image files of volumes and their mounts, through the machine's own tools. Every call is bounded.

The loop device below a mount is the kernel's to release (mount sets autoclear): it goes with the last mount of its
image, also with those in the sandboxes' mount namespaces. mount(8) never puts a second loop device on one image.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from cloche.errors import InternalError, StorageFull
from cloche_server.child_process import kill_and_drain
from cloche_server.volumes._mount_table import Mount, parse_mounts

COMMAND_BOUND_S: Final = 60.0
"""Measured: 0.02 to 0.6 s, on a busy machine."""

SANDBOX_UID: Final = 1000
"""``user``, in every image."""

MEBIBYTE: Final = 1024 * 1024

BIG_MB: Final = 1024
BIG_JOURNAL_MB: Final = 16
"""mke2fs gives a large file system a journal of up to 1 GiB; these are written by a few programs at a time."""

MOUNT_OPTIONS: Final = "loop,nodev,nosuid,noatime,discard,noinit_itable"
"""``discard``: what is deleted inside is given back to the host's disk. ``noinit_itable``: the image is sparse and reads
as zeros; the kernel need not write them."""


async def make_image(path: Path, size_mb: int) -> None:
    """A sparse image whose root belongs to the sandbox' user. On a failure nothing is left.

    With a journal, unlike the disks of sandboxes: it has to outlive a power cut.
    """
    journal = ("-J", f"size={BIG_JOURNAL_MB}") if size_mb >= BIG_MB else ()
    extended = f"lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner={SANDBOX_UID}:{SANDBOX_UID}"
    try:
        _make_sparse(path, size_mb * MEBIBYTE)
        await _run("mkfs.ext4", "-q", "-F", "-m", "0", *journal, "-E", extended, str(path))
        await _run("debugfs", "-w", "-R", "rmdir lost+found", str(path))
        await asyncio.to_thread(_make_durable, path)
    except BaseException:
        remove_image(path)
        raise


def _make_sparse(path: Path, size_bytes: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.truncate(descriptor, size_bytes)
    finally:
        os.close(descriptor)


def _make_durable(path: Path) -> None:
    """The row that names it must not outlive it in a power failure."""
    for place in (path, path.parent):
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_image(path: Path) -> None:
    """Idempotent. Blocks for some milliseconds when it is large."""
    path.unlink(missing_ok=True)


async def mount_image(image: Path, point: Path) -> None:
    """``point`` is an empty directory."""
    await _run("mount", "-n", "-t", "ext4", "-o", MOUNT_OPTIONS, str(image), str(point))


async def unmount(point: Path) -> None:
    """Raises `InternalError` while something of the host is in it; sandboxes do not count: they have mounts of their own."""
    await _run("umount", "-n", str(point))


def remove_point(point: Path) -> None:
    """Nothing when it is gone. Every sandbox was started in a copy of the host's mount table: with the directory the kernel
    (since 3.18) takes away what is mounted on it in all the copies, so no bystander keeps the volume mounted."""
    with suppress(FileNotFoundError):
        point.rmdir()


def mounts_below(directory: Path) -> list[Mount]:
    """``directory`` is an absolute path without links."""
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text(errors="surrogateescape"))
    return [mount for mount in mounts if mount.point.is_relative_to(directory)]


def is_mounted(point: Path) -> bool:
    """Whether a file system of its own is there."""
    return os.path.ismount(point)


def backing_file(device: str) -> Path | None:
    """Of a loop device; None for another device, or one whose file was deleted."""
    name = device.removeprefix("/dev/")
    with suppress(OSError):
        text = Path(f"/sys/block/{name}/loop/backing_file").read_text().removesuffix("\n")
        return None if text.endswith(" (deleted)") else Path(text)
    return None


def used_bytes(point: Path) -> int:
    """Of the file system that is mounted there."""
    found = os.statvfs(point)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


async def _run(*argv: str) -> None:
    """Raises `StorageFull` or `InternalError`, with the program's words."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
    )
    try:
        async with asyncio.timeout(COMMAND_BOUND_S):
            _, said = await process.communicate()
    except TimeoutError:
        raise InternalError(f"{argv[0]} did not end within {COMMAND_BOUND_S:.0f} s") from None
    finally:
        await kill_and_drain(process)
    if process.returncode != 0:
        raise _failed(argv[0], said.decode(errors="replace").strip())


def _failed(program: str, said: str) -> StorageFull | InternalError:
    if "No space left on device" in said:
        return StorageFull("the server's disk is full", hint="its operator has to free space")
    return InternalError(f"{program} failed: {said[-500:]}")
