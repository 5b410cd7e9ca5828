"""Looking: stat, list, glob. Everything is bounded; what could not be read is said, never left out."""

from __future__ import annotations

import heapq
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cloche.path_text import to_text
from cloche_guest.files.globs import GlobFilter
from cloche_guest.files.worker.channel import CODES, Channel, Json, errno_name, speaking_of
from cloche_guest.files.worker.facts import describe_entry, describe_path

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_BATCH: Final = 10_000
"""Names of one directory held at a time. A larger directory is read again for each batch."""


def stat_file(channel: Channel, order: Json) -> None:
    """``path``, ``follow``"""
    with speaking_of(order["path"]):
        channel.answer(describe_path(order["path"], follow=order["follow"]))


@dataclass(slots=True)
class _Found:
    path: str
    directory: int
    name: str
    error: str | None = None


def list_directory(channel: Channel, order: Json) -> None:
    """``path``, ``depth``, ``limit``, ``after`` (relative path of the last entry of the page before, or null)."""
    path: str = order["path"]
    root = path.rstrip("/")
    items: list[Json] = []
    last: str | None = None
    with speaking_of(path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for found in walk(channel, fd, order["depth"], order["after"]):
                if len(items) == order["limit"]:
                    channel.answer({"items": items, "next": last})
                    return
                try:
                    entry = describe_entry(found.directory, found.name, f"{root}/{found.path}")
                except FileNotFoundError:
                    continue
                items.append({**entry, "error": found.error})
                last = found.path
        finally:
            os.close(fd)
    channel.answer({"items": items, "next": None})


def walk(
    channel: Channel, root: int, depth: int | None, after: str | None = None, skip: GlobFilter | None = None
) -> Iterator[_Found]:
    """What is below `root`, in the order of the bytes of names, a directory before what it holds. Links are not followed.

    The descriptor of a `_Found` is good until the next one is asked for.
    """
    resume = after.split("/") if after else []
    stack = [(os.dup(root), "", _names(root, resume[0] if resume else None))]
    try:
        while stack:
            fd, prefix, names = stack[-1]
            name = next(names, None)
            if name is None:
                stack.pop()
                os.close(fd)
                continue
            channel.check()
            path = prefix + name
            if skip is not None and skip.excludes(path):
                continue
            level = len(stack)
            resumed = len(resume) >= level and resume[:level] == path.split("/")
            found = _Found(path, fd, name)
            below: int | None = None
            if depth is None or level < depth:
                below, found.error = _enter(fd, name)
            if not resumed:  # else it was on an earlier page, and what it holds may not have been
                yield found
            if below is not None:
                first = resume[level] if resumed and len(resume) > level else None
                stack.append((below, f"{path}/", _names(below, first)))
    finally:
        for fd, _, _ in stack:
            os.close(fd)


def _enter(directory: int, name: str) -> tuple[int | None, str | None]:
    """The descriptor of a directory that can be read; else the code of what keeps us out. (None, None): no directory."""
    try:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
            return None, None
        return os.open(name, _DIRECTORY, dir_fd=directory), None
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except OSError as error:
        code = CODES.get(errno_name(error), "file_failed")
        if code == "limit_reached":
            raise  # out of descriptors: a list without these directories' contents would be wrong in silence
        return None, code


def _names(fd: int, start: str | None) -> Iterator[str]:
    """Names in order, `start` and what follows it. Memory is bounded, whatever the size of the directory."""
    least = b"" if start is None else os.fsencode(start)
    while True:
        with os.scandir(fd) as entries:
            raw = (os.fsencode(entry.name) for entry in entries)
            batch = heapq.nsmallest(_BATCH, (name for name in raw if name >= least))
        yield from map(os.fsdecode, batch)
        if len(batch) < _BATCH:
            return
        least = batch[-1] + b"\0"


def glob(channel: Channel, order: Json) -> None:
    """``path``, ``pattern``, ``exclude``, ``limit``"""
    path: str = order["path"]
    wanted = GlobFilter([order["pattern"]])
    paths: list[str] = []
    with speaking_of(path):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for found in walk(channel, fd, None, skip=GlobFilter((), order["exclude"])):
                if not wanted.includes(found.path):
                    continue
                if len(paths) == order["limit"]:
                    channel.answer({"paths": paths, "truncated": True})
                    return
                paths.append(to_text(found.path))
        finally:
            os.close(fd)
    channel.answer({"paths": paths, "truncated": False})
