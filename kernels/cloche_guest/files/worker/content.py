"""Reading and writing the content of one file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import threading
from typing import Final

from cloche_guest.files.worker.channel import Channel, Json, Refused, copy_out, open_regular, printable, speaking_of
from cloche_guest.files.worker.facts import describe, etag_of

TEMPORARY_PREFIX: Final = ".cloche-"
"""Of files that are about to replace another; watches do not show them."""

_COMMIT: Final = threading.Lock()
"""Between the last look at the etag and the rename no other writer of ours may come: two with the same If-Match, one wins."""


def read(channel: Channel, order: Json) -> None:
    """``path``, ``range`` ([first, last] or null; first null: the last so many bytes), ``if_none_match``."""
    path: str = order["path"]
    with speaking_of(path):
        fd = open_regular(path, os.O_RDONLY)
    try:
        facts = os.fstat(fd)
        etag = etag_of(facts)
        if _matches(order["if_none_match"], etag):
            channel.answer({"etag": etag, "unchanged": True})
            return
        start, size = _span(order["range"], facts.st_size)
        known = facts.st_size > 0 or order["range"] is not None  # files of /proc have content, but no size
        partial = order["range"] is not None
        answer = {"etag": etag, "start": start, "total": facts.st_size, "partial": partial, "unchanged": False}
        channel.answer({**answer, "length": size if known else None})
        with speaking_of(path):
            if start:
                os.lseek(fd, start, os.SEEK_SET)
            if copy_out(fd, size if known else None, channel) < size:
                raise Refused("file_failed", f"{printable(path)} became shorter while it was read", errno="EIO")
        channel.end()
    finally:
        os.close(fd)


def _span(wanted: list[int | None] | None, total: int) -> tuple[int, int]:
    """(start, length)"""
    if wanted is None:
        return 0, total
    first, last = wanted
    if first is None:
        assert last is not None
        length = min(last, total)
        if not length:
            raise Refused("range_not_satisfiable", f"the file has {total} bytes", size=total)
        return total - length, length
    if first >= total:
        raise Refused("range_not_satisfiable", f"byte {first} is behind the end: the file has {total}", size=total)
    return first, (total if last is None else min(last + 1, total)) - first


def _matches(header: list[str] | None, etag: str | None) -> bool:
    """One of the listed tags, or ``*`` for any file."""
    return header is not None and etag is not None and ("*" in header or etag in header)


def _check(order: Json, etag: str | None) -> None:
    wanted: list[str] | None = order["if_match"]
    if wanted is not None and not _matches(wanted, etag):
        raise Refused("precondition_failed", "the file is not the one that If-Match names", etag=etag)
    if _matches(order["if_none_match"], etag):
        raise Refused("precondition_failed", "the file is one that If-None-Match excludes", etag=etag)


def _present_etag(path: str) -> str | None:
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(facts.st_mode):
        raise Refused("is_directory", f"{printable(path)} is a directory")
    if not stat.S_ISREG(facts.st_mode):
        raise Refused("not_regular_file", f"{printable(path)} is no regular file")
    return etag_of(facts)


def write(channel: Channel, order: Json) -> None:
    """``path``, ``mode``, ``parents``, ``atomic``, ``append``, ``if_match``, ``if_none_match``; then the content."""
    path: str = order["path"]
    with speaking_of(path):
        _check(order, _present_etag(path))
        if order["parents"]:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        write_it = _replace if order["atomic"] else _write_in_place
        result = write_it(channel, order)
    channel.answer(result)


def _write_in_place(channel: Channel, order: Json) -> Json:
    path: str = order["path"]
    existed = os.path.exists(path)
    how = os.O_APPEND if order["append"] else os.O_TRUNC
    fd = open_regular(path, os.O_WRONLY | os.O_CREAT | how)
    try:
        if order["mode"] is not None:
            os.fchmod(fd, order["mode"])
        channel.answer({"ready": True})
        _receive(channel, fd)
        return {"created": not existed, "info": describe(path, os.fstat(fd))}
    finally:
        os.close(fd)


def _replace(channel: Channel, order: Json) -> Json:
    """Beside the target first, so that readers see the old content or the new, and a full disk harms nothing."""
    target = os.path.realpath(order["path"])  # a link stays, and what it leads to is replaced
    directory = os.open(os.path.dirname(target), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name = os.path.basename(target)
        temporary = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}.tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
        try:
            with contextlib.closing(open(fd, "wb", buffering=0)):
                channel.answer({"ready": True})
                _receive(channel, fd)
                os.fchmod(fd, _mode_for(order, directory, name))
                os.fsync(fd)
                created = _commit(order, directory, temporary, name)
                facts = os.fstat(fd)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise
        return {"created": created, "info": describe(order["path"], facts)}
    finally:
        os.close(directory)


def _commit(order: Json, directory: int, temporary: str, name: str) -> bool:
    """Whether the name is new."""
    with _COMMIT:
        present = _present_at(directory, name)
        _check(order, present)
        if order["if_none_match"] and "*" in order["if_none_match"]:
            try:
                os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
            except FileExistsError:
                raise Refused("precondition_failed", "the file was made meanwhile", etag=None) from None
            os.unlink(temporary, dir_fd=directory)
        else:
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    return present is None


def _present_at(directory: int, name: str) -> str | None:
    try:
        return etag_of(os.lstat(name, dir_fd=directory))
    except FileNotFoundError:
        return None


def _mode_for(order: Json, directory: int, name: str) -> int:
    """What was asked for, else that of the file being replaced, else that of a new one."""
    if order["mode"] is not None:
        return int(order["mode"])
    try:
        return stat.S_IMODE(os.lstat(name, dir_fd=directory).st_mode)
    except FileNotFoundError:
        return 0o666 & ~UMASK


UMASK: Final = 0o022
"""Set by the worker at its start; asking the system for it would change it for other threads."""


def _receive(channel: Channel, fd: int) -> None:
    # O_NONBLOCK was for the open; on a regular file it has no effect, but a driver of a strange file system may differ.
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
    for data in channel.body():
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
