"""A watch: inotify on one side, the connection to the guest on the other; `WatchTree` and `Coalescer` between them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from inotify_simple import INotify, flags

from cloche.path_text import to_text
from cloche_guest.files.coalesce import Coalescer
from cloche_guest.files.globs import GlobFilter
from cloche_guest.files.watch_tree import MASK, Change, Entry, RawEvent, WatchTree
from cloche_guest.files.worker.channel import Channel, Hangup, Json, Refused, printable, speaking_of
from cloche_guest.files.worker.content import TEMPORARY_PREFIX

PAIR_WAIT_MS: Final = 10
"""For the second half of a move; the kernel queues both at once, so this is only for a read that fell between them."""

RESCAN_SLACK_NS: Final = 1_000_000_000
"""File times are those of the last tick (4 to 10 ms), and of a clock that need not be ours."""

_BATCH: Final = 512
_HIDDEN: Final = re.compile(re.escape(TEMPORARY_PREFIX) + r"[0-9a-f]{16}\.tmp")


class RealSystem:
    """inotify and the disk."""

    def __init__(self, root: str, inotify: INotify) -> None:
        self._root = root
        self._inotify = inotify

    def add(self, path: str) -> int:
        return int(self._inotify.add_watch(self._at(path), MASK))

    def drop(self, wd: int) -> None:
        with contextlib.suppress(OSError):
            self._inotify.rm_watch(wd)

    def entries(self, path: str) -> Iterator[Entry]:
        with os.scandir(self._at(path)) as found:
            for entry in found:
                is_directory = entry.is_dir(follow_symlinks=False)
                try:
                    yield Entry(entry.name, is_directory, entry.stat(follow_symlinks=False).st_ctime_ns)
                except FileNotFoundError:
                    continue

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


def watch(channel: Channel, order: Json) -> None:
    """``path``, ``recursive``, ``include``, ``exclude``, ``coalesce_ms``: `ready`, then events in data frames, until the end."""
    path: str = order["path"]
    with speaking_of(path):
        root = os.path.realpath(path)
        if not os.path.isdir(root):
            os.stat(root)
            raise Refused("not_directory", f"{printable(path)} is no directory; watch the one it is in")
    with _open_inotify(path) as inotify:
        _Watching(channel, order, root, inotify).run()


def _open_inotify(path: str) -> INotify:
    try:
        return INotify(nonblocking=True)
    except OSError as error:
        raise _no_more("max_user_instances", path, error) from error


def _no_more(setting: str, path: str, error: OSError) -> Refused:
    limit = None
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path(f"/proc/sys/fs/inotify/{setting}").read_text())
    known = f" ({limit})" if limit is not None else ""
    message = (
        f"{printable(path)} cannot be watched: no inotify watches are left, fs.inotify.{setting}{known} is reached"
    )
    return Refused("limit_reached", message, kind="watches", setting=setting, limit=limit, errno=error.errno)


class _Watching:
    def __init__(self, channel: Channel, order: Json, root: str, inotify: INotify) -> None:
        self._channel = channel
        self._order = order
        self._inotify = inotify
        self._coalescer = Coalescer(order["coalesce_ms"] / 1000)
        self._out: list[Change] = []
        self._tree = WatchTree(
            RealSystem(root, inotify),
            GlobFilter(order["include"], order["exclude"]),
            self._take,
            recursive=order["recursive"],
            hidden=lambda name: _HIDDEN.fullmatch(name) is not None,
            anchored=any("/" in pattern.rstrip("/") for pattern in order["exclude"]),
        )
        self._told_directories = -1

    def run(self) -> None:
        started = time.time_ns()
        try:
            with speaking_of(self._order["path"]):
                self._tree.start()
        except Refused as error:
            if error.details.get("errno") == "ENOSPC":
                raise _no_more("max_user_watches", self._order["path"], OSError(errno.ENOSPC, "")) from error
            raise
        self._channel.answer({"ready": True, "directories": self._tree.directories})
        self._told_directories = self._tree.directories
        poll = select.poll()
        poll.register(self._inotify, select.POLLIN)
        poll.register(self._channel.fileno(), select.POLLRDHUP | select.POLLHUP)
        caught_up = started
        while self._tree.stopped is None:
            ready = poll.poll(self._patience_ms())
            if any(fd == self._channel.fileno() for fd, _ in ready):
                raise Hangup
            read_at = time.time_ns()
            self._tree.handle(self._read())
            if self._tree.overflowed:
                self._tree.rescan(caught_up - RESCAN_SLACK_NS)
            caught_up = read_at
            self._out += self._coalescer.due(time.monotonic())
            self._send()
        self._take(Change("stopped", "", reason=self._tree.stopped))
        self._send()
        self._channel.end()

    def _patience_ms(self) -> int | None:
        if self._tree.in_doubt:
            return PAIR_WAIT_MS
        due = self._coalescer.next_due()
        return None if due is None else max(0, int((due - time.monotonic()) * 1000) + 1)

    def _read(self) -> list[RawEvent]:
        events = [RawEvent(*event) for event in self._inotify.read(timeout=0)]
        if events and events[-1].mask & flags.MOVED_FROM:
            events += (RawEvent(*event) for event in self._inotify.read(timeout=PAIR_WAIT_MS))
        return events

    def _take(self, change: Change) -> None:
        self._out += self._coalescer.take(change, time.monotonic())
        if len(self._out) >= _BATCH:
            self._send()

    def _send(self) -> None:
        if not self._out and self._tree.directories == self._told_directories:
            return
        self._told_directories = self._tree.directories
        events = [_as_json(change) for change in self._out]
        self._out.clear()
        self._channel.data(json.dumps({"directories": self._told_directories, "events": events}).encode())


def _as_json(change: Change) -> Json:
    """The event's type, and its data."""
    data: Json = {}
    if change.kind in ("stopped", "unwatched"):
        data["reason"] = change.reason
    if change.kind not in ("overflow", "rescanned", "stopped"):
        data["path"] = to_text(change.path)
    if change.kind in ("create", "delete", "attrib", "move"):
        data["is_directory"] = change.is_directory
    if change.kind == "move":
        data["destination"] = to_text(change.destination or "")
        data["replaced"] = change.replaced
    return {"type": change.kind, "data": data}
