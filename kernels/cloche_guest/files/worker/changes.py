"""Making, moving, copying and removing. Recursive work goes through directory descriptors and follows no link."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from typing import Final

from cloche_guest.files.worker.channel import Channel, Json, Refused, open_regular, printable, speaking_of
from cloche_guest.files.worker.content import UMASK
from cloche_guest.files.worker.facts import describe_path

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1
_COPY_BYTES: Final = 1024 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


def mkdir(channel: Channel, order: Json) -> None:
    """``path``, ``parents``, ``exist_ok``, ``mode``"""
    path: str = order["path"]
    with speaking_of(path):
        if order["parents"]:
            os.makedirs(os.path.dirname(path.rstrip("/")) or "/", exist_ok=True)
        try:
            os.mkdir(path)
        except FileExistsError:
            if not (order["exist_ok"] and os.path.isdir(path)):
                raise
        else:
            os.chmod(path, 0o777 & ~UMASK if order["mode"] is None else order["mode"])
        channel.answer(describe_path(path))


def move(channel: Channel, order: Json) -> None:
    """``path``, ``destination``, ``overwrite``"""
    path, destination = order["path"], order["destination"]
    with _speaking_of_both(path, destination):
        try:
            _rename(path, destination, replace=order["overwrite"])
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _move_across(channel, path, destination, overwrite=order["overwrite"])
        channel.answer(describe_path(destination))


def _rename(path: str, destination: str, *, replace: bool) -> None:
    if replace:
        os.rename(path, destination)
        return
    done = _libc.renameat2(_AT_FDCWD, os.fsencode(path), _AT_FDCWD, os.fsencode(destination), _RENAME_NOREPLACE)
    if done == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number), destination if number == errno.EEXIST else path)
    # A file system without the flag: look first, which leaves a moment for somebody else.
    if os.path.lexists(destination):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), destination)
    os.rename(path, destination)


def _move_across(channel: Channel, path: str, destination: str, *, overwrite: bool) -> None:
    """Between file systems: copied first, removed when the copy is whole."""
    _copy(channel, path, destination, recursive=True, overwrite=overwrite)
    _remove(channel, path, recursive=True)


def copy(channel: Channel, order: Json) -> None:
    """``path``, ``destination``, ``recursive``, ``overwrite``"""
    path, destination = order["path"], order["destination"]
    with _speaking_of_both(path, destination):
        _copy(channel, path, destination, recursive=order["recursive"], overwrite=order["overwrite"])
        channel.answer(describe_path(destination))


def _copy(channel: Channel, path: str, destination: str, *, recursive: bool, overwrite: bool) -> None:
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode):
        if os.path.isdir(destination):
            raise Refused("is_directory", f"{printable(destination)} is a directory")
        with _parent_of(path) as (source, name), _parent_of(destination) as (target, new_name):
            _copy_entry(channel, source, name, target, new_name, overwrite=overwrite)
        return
    if not recursive:
        raise Refused("is_directory", f"{printable(path)} is a directory; copying one needs recursive")
    if os.path.realpath(destination).startswith(os.path.realpath(path).rstrip("/") + "/"):
        raise Refused("file_failed", "a directory cannot be copied into itself", errno="EINVAL")
    os.mkdir(destination)
    source_fd = os.open(path, _DIRECTORY)
    with _closing(source_fd):
        target_fd = os.open(destination, _DIRECTORY)
        with _closing(target_fd):
            _copy_below(channel, source_fd, target_fd)
            os.fchmod(target_fd, facts.st_mode & 0o777)


def _copy_below(channel: Channel, source: int, target: int) -> None:
    """With a stack: trees may be deeper than Python recurses."""
    stack = [(os.dup(source), os.dup(target), iter(os.listdir(source)), -1)]
    try:
        while stack:
            source, target, names, mode = stack[-1]
            name = next(names, None)
            channel.check()
            if name is None:
                stack.pop()
                if mode >= 0:
                    os.fchmod(target, mode)
                os.close(source)
                os.close(target)
                continue
            facts = os.lstat(name, dir_fd=source)
            if not stat.S_ISDIR(facts.st_mode):
                _copy_entry(channel, source, name, target, name, overwrite=False)
                continue
            below = os.open(name, _DIRECTORY, dir_fd=source)
            os.mkdir(name, dir_fd=target)
            made = os.open(name, _DIRECTORY, dir_fd=target)
            stack.append((below, made, iter(os.listdir(below)), facts.st_mode & 0o777))
    finally:
        for source, target, _, _ in stack:
            os.close(source)
            os.close(target)


def _copy_entry(channel: Channel, source: int, name: str, target: int, new_name: str, *, overwrite: bool) -> None:
    """A link or a regular file; an existing target is only replaced with `overwrite`."""
    facts = os.lstat(name, dir_fd=source)
    if overwrite:
        with contextlib.suppress(FileNotFoundError):
            present = os.lstat(new_name, dir_fd=target)
            if (present.st_dev, present.st_ino) == (facts.st_dev, facts.st_ino):
                return
            os.unlink(new_name, dir_fd=target)
    if stat.S_ISLNK(facts.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), new_name, dir_fd=target)
        return
    with _closing(open_regular(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=source)) as reading:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _closing(os.open(new_name, flags, 0o600, dir_fd=target)) as writing:
            while data := os.read(reading, _COPY_BYTES):
                view = memoryview(data)
                while view:
                    view = view[os.write(writing, view) :]
                channel.check()
            os.fchmod(writing, facts.st_mode & 0o777)


def remove(channel: Channel, order: Json) -> None:
    """``path``, ``recursive``, ``missing_ok``"""
    path: str = order["path"]
    with speaking_of(path):
        try:
            removed = _remove(channel, path, recursive=order["recursive"])
        except FileNotFoundError:
            if not order["missing_ok"]:
                raise
            removed = 0
    channel.answer({"removed": removed})


def remove_tree(path: str) -> None:
    """Everything at `path`, whatever it is."""
    _remove(None, path, recursive=True)


def _remove(channel: Channel | None, path: str, *, recursive: bool) -> int:
    path = path.rstrip("/") or "/"
    if os.path.basename(path) in (".", ".."):
        raise Refused("file_failed", f"{printable(path)} names no entry of a directory", errno="EINVAL")
    with _parent_of(path) as (directory, name):
        if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
            os.unlink(name, dir_fd=directory)
            return 1
        removed = _empty(channel, directory, name) if recursive else 0
        os.rmdir(name, dir_fd=directory)
        return removed + 1


def _empty(channel: Channel | None, directory: int, name: str) -> int:
    removed = 0
    stack: list[tuple[int, Iterator[str], str]] = []

    def push(parent: int, child: str) -> None:
        fd = os.open(child, _DIRECTORY, dir_fd=parent)
        stack.append((fd, iter(os.listdir(fd)), child))

    push(directory, name)
    try:
        while stack:
            fd, names, own_name = stack[-1]
            child = next(names, None)
            if child is None:
                stack.pop()
                os.close(fd)
                if stack:
                    os.rmdir(own_name, dir_fd=stack[-1][0])
                    removed += 1
                continue
            if channel is not None and removed % 256 == 0:
                channel.check()
            try:
                is_directory = stat.S_ISDIR(os.lstat(child, dir_fd=fd).st_mode)
                if is_directory:
                    push(fd, child)
                else:
                    os.unlink(child, dir_fd=fd)
                    removed += 1
            except FileNotFoundError:
                continue
    finally:
        for fd, _, _ in stack:
            os.close(fd)
    return removed


def chmod(channel: Channel, order: Json) -> None:
    """``path``, ``mode``, ``recursive``"""
    path: str = order["path"]
    mode: int = order["mode"]
    with speaking_of(path):
        if order["recursive"] and os.path.isdir(path):
            _chmod_below(channel, path, mode)
        os.chmod(path, mode)
        channel.answer(describe_path(path))


def _chmod_below(channel: Channel, path: str, mode: int) -> None:
    """Children before their directory: the new mode may lock us out of it."""
    for _, directories, files, fd in os.fwalk(path, topdown=False, follow_symlinks=False, onerror=_fail):
        channel.check()
        for name in (*directories, *files):
            if not stat.S_ISLNK(os.lstat(name, dir_fd=fd).st_mode):
                os.chmod(name, mode, dir_fd=fd)


def _fail(error: OSError) -> None:
    raise error


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _parent_of(path: str) -> Iterator[tuple[int, str]]:
    """The directory a path's last part is in, open, and that part."""
    path = path.rstrip("/")
    if not path:
        raise Refused("permission_denied", "/ itself cannot be changed", errno="EBUSY")
    fd = os.open(os.path.dirname(path) or "/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd, os.path.basename(path)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _speaking_of_both(path: str, destination: str) -> Iterator[None]:
    """An error about the destination names the destination."""
    try:
        yield
    except OSError as error:
        gone_or_new = os.path.lexists(path) and not os.path.lexists(destination)
        with speaking_of(destination if error.filename == destination or gone_or_new else path):
            raise
