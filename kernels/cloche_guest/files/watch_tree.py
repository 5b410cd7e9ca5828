"""From inotify's facts to what happened in a tree. Pure: the file system is passed in (`WatchSystem`).

Theory of operation
-------------------
inotify watches directories, not trees, and names what happened *in* them by watch descriptor (wd). So this file keeps a tree
of the names it has told of (`Directory`), one wd each, and derives paths from it at the moment an event is handled: events
come in order, so the tree is as it was for each of them.

* **New directories.** Between the making of a directory and our watch in it, things may be made there that inotify never
  tells. So: first the watch, then a scan; what the scan finds is told as created. What inotify tells a second time is known
  by then and passed over. Nothing is lost and nothing is told twice, whatever the timing.
* **Moves.** The kernel gives both halves one cookie, mostly one behind the other. They are paired when nothing in between
  touches either name; else the move is told as delete and create, which leads to the same state.
* **Late looks.** By the time we watch or scan a path, it may have moved on or be another directory. What was not there is
  *doubtful*: it is looked for again when the event that explains it was handled.
* **Fresh watches.** A path may also lead to *another* directory by then. The event of the move that made it so is still to
  come: when a directory moves, what was watched in it since the queue was last empty is compared again.
* **One inode, one wd.** Adding a watch to an inode that has one gives the same wd. When that happens for another directory
  of ours, names were swapped faster than we looked, and events still to come speak of a tree we do not have any more. Then,
  and whenever an event makes no sense, we go on as well as we can and compare everything with the disk as soon as it is quiet.
* **Overflow.** When the kernel drops events, everything is compared with the disk (`rescan`): new names, vanished names, and
  by the change time, which programs cannot set, new content.

So the invariant: once all events are handled, the tree of names, and with it what a reader has computed from the events, is
what is on the disk.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from inotify_simple import flags

from cloche_guest.files.globs import GlobFilter

MASK: Final = int(
    flags.CREATE | flags.DELETE | flags.MOVED_FROM | flags.MOVED_TO | flags.MODIFY | flags.ATTRIB
    | flags.DELETE_SELF | flags.MOVE_SELF | flags.ONLYDIR | flags.DONT_FOLLOW | flags.EXCL_UNLINK
)  # fmt: skip

NOTHING_SINCE: Final = 2**63

PAIR_DISTANCE: Final = 64
"""Events between the two halves of a move. Other processors may slip some in; more was never seen."""


class RawEvent(NamedTuple):
    """As inotify tells it."""

    wd: int
    mask: int
    cookie: int
    name: str


class Change(NamedTuple):
    """What happened; paths are relative to the root."""

    kind: str
    path: str
    is_directory: bool = False
    destination: str | None = None
    replaced: bool = False
    reason: str | None = None


class Entry(NamedTuple):
    """One name of a directory on disk."""

    name: str
    is_directory: bool
    changed_ns: int


class WatchSystem(Protocol):
    """The file system, and inotify. Paths are relative to the root; ``""`` is the root itself."""

    def add(self, path: str) -> int:
        """Watch a directory; its wd. Raises OSError."""
        ...

    def drop(self, wd: int) -> None:
        """Stop; unknown ones are ignored."""
        ...

    def entries(self, path: str) -> Iterable[Entry]:
        """Raises OSError."""
        ...


class Directory:
    """A directory that was told of. ``entries``: name -> `Directory`, or None for everything else."""

    __slots__ = ("entries", "name", "parent", "wd")

    def __init__(self, name: str, parent: Directory | None) -> None:
        self.name = name
        self.parent = parent
        self.wd: int | None = None
        self.entries: dict[str, Directory | None] = {}

    def path(self, name: str = "") -> str:
        parts = [name] if name else []
        at: Directory | None = self
        while at is not None and at.parent is not None:
            parts.append(at.name)
            at = at.parent
        return "/".join(reversed(parts))


@dataclass(frozen=True, slots=True)
class _Pair:
    """The first half of a move, kept until its second half is handled."""

    directory: Directory
    name: str


class WatchTree:
    """See the module. ``emit`` gets every `Change`, in order.

    Args:
        hidden: names that are never told, at any depth.
    """

    def __init__(
        self,
        system: WatchSystem,
        globs: GlobFilter,
        emit: Callable[[Change], None],
        *,
        recursive: bool,
        hidden: Callable[[str], bool],
        anchored: bool = False,
    ) -> None:
        self._system = system
        self._globs = globs
        self._emit_now = emit
        self._recursive = recursive
        self._hidden = hidden
        self._anchored = anchored
        self._root = Directory("", None)
        self._by_wd: dict[int, Directory] = {}
        self._doubtful: deque[Directory] = deque()
        self._confused = False
        self._fresh: set[Directory] = set()
        self.stopped: str | None = None
        self.overflowed = False

    @property
    def directories(self) -> int:
        """Watched now."""
        return len(self._by_wd)

    @property
    def in_doubt(self) -> bool:
        """Something could not be found where it should be: call `handle` again soon, even without events."""
        return self._confused or bool(self._doubtful or self._fresh)

    def start(self) -> None:
        """Watch what is there, without telling it.

        Raises:
            OSError: the root cannot be watched, or (ENOSPC) there are not enough watches.
        """
        self._root.wd = self._system.add("")
        self._by_wd[self._root.wd] = self._root
        self._scan(self._root, tell=False)

    def handle(self, events: Sequence[RawEvent]) -> None:
        """All events of one read."""
        pairs: dict[int, _Pair] = {}
        for index, event in enumerate(events):
            if self.stopped is not None:
                return
            if event.mask & flags.MOVED_FROM and self._has_partner(events, index):
                directory = self._by_wd.get(event.wd)
                if directory is not None:
                    pairs[event.cookie] = _Pair(directory, event.name)
                    continue
            self._handle_one(event, pairs)
        if not events:
            self._settle_confusion()
        self._settle_doubts()

    def rescan(self, since_ns: int) -> None:
        """Compare everything with the disk. Files changed after `since_ns` are told as modified."""
        self.overflowed = False
        self._compare(self._root, since_ns)
        self._settle_doubts()
        self._emit_now(Change("rescanned", ""))

    # One event

    def _handle_one(self, event: RawEvent, pairs: dict[int, _Pair]) -> None:
        if event.mask & flags.Q_OVERFLOW:
            self.overflowed = True
            self._emit_now(Change("overflow", ""))
            return
        directory = self._by_wd.get(event.wd)
        if directory is None:
            self._close_pair(pairs.pop(event.cookie, None))
            return
        if event.mask & (flags.IGNORED | flags.UNMOUNT | flags.DELETE_SELF | flags.MOVE_SELF):
            self._handle_self(directory, event)
            return
        if not event.name or self._is_hidden(directory, event.name):
            if event.mask & flags.MOVED_TO:
                self._close_pair(pairs.pop(event.cookie, None))
            return
        self._handle_name(directory, event, pairs)

    def _handle_self(self, directory: Directory, event: RawEvent) -> None:
        if event.mask & flags.IGNORED:
            del self._by_wd[event.wd]
            directory.wd = None
        if directory is not self._root:
            return
        self.stopped = "moved" if event.mask & flags.MOVE_SELF else "deleted"

    def _handle_name(self, directory: Directory, event: RawEvent, pairs: dict[int, _Pair]) -> None:
        is_directory = bool(event.mask & flags.ISDIR)
        if event.mask & flags.CREATE:
            self._appeared(directory, event.name, is_directory, made=True)
        elif event.mask & (flags.DELETE | flags.MOVED_FROM):
            self._vanished(directory, event.name)
        elif event.mask & flags.MOVED_TO:
            pair = pairs.pop(event.cookie, None)
            if pair is None:
                self._appeared(directory, event.name, is_directory, made=False)
            else:
                self._moved(pair, directory, event.name, is_directory)
        elif event.mask & (flags.MODIFY | flags.ATTRIB):
            self._touched(directory, event, is_directory)

    def _has_partner(self, events: Sequence[RawEvent], index: int) -> bool:
        """The other half comes soon, and nothing before it touches either name."""
        first = events[index]
        for at in range(index + 1, min(index + 1 + PAIR_DISTANCE, len(events))):
            second = events[at]
            if second.mask & flags.MOVED_TO and second.cookie == first.cookie:
                names = {(first.wd, first.name), (second.wd, second.name)}
                return all((event.wd, event.name) not in names for event in events[index + 1 : at])
        return False

    def _close_pair(self, pair: _Pair | None) -> None:
        """Moved to where nobody looks."""
        if pair is not None:
            self._vanished(pair.directory, pair.name)

    def _appeared(self, directory: Directory, name: str, is_directory: bool, *, made: bool) -> None:
        """`made`: by CREATE, which for a known name of the same kind says what a scan has said before."""
        if not self._is_ours(directory):
            self._confused = True  # forgotten with what it was in, a moment ago
            return
        if name in directory.entries:
            known = directory.entries[name]
            if not is_directory and known is None:
                if not made:
                    self._tell(Change("modify", directory.path(name)))
                return
            if is_directory and known is not None and made:
                if known.wd is None and self._recursive:
                    self._watch(known, tell=True)
                return
            self._vanished(directory, name)
        self._add(directory, name, is_directory, tell=True)

    def _add(self, directory: Directory, name: str, is_directory: bool, *, tell: bool) -> None:
        node = Directory(name, directory) if is_directory else None
        directory.entries[name] = node
        if tell:
            self._tell(Change("create", directory.path(name), is_directory))
        if node is not None and self._recursive:
            self._watch(node, tell=tell)

    def _vanished(self, directory: Directory, name: str) -> None:
        if name not in directory.entries:
            return
        node = directory.entries.pop(name)
        if node is not None:
            self._forget(node)
        self._tell(Change("delete", directory.path(name), node is not None))

    def _moved(self, pair: _Pair, directory: Directory, name: str, is_directory: bool) -> None:
        if not (self._is_ours(pair.directory) and self._is_ours(directory)):
            self._confused = True
            self._appeared(directory, name, is_directory, made=False)
            return
        source = pair.directory.path(pair.name)
        known = pair.name in pair.directory.entries
        node = pair.directory.entries.get(pair.name)
        if not known or (node is not None) != is_directory or self._hides(source) or (is_directory and self._anchored):
            self._vanished(pair.directory, pair.name)
            self._appeared(directory, name, is_directory, made=False)
            return
        if node is not None and self._is_below(directory, node):
            self._confused = True  # nothing moves into itself
            self._vanished(pair.directory, pair.name)
            return
        replaced = name in directory.entries
        old = directory.entries.get(name)
        if old is not None and self._is_below(pair.directory, old):
            self._confused = True  # nor over what it is in
            self._vanished(directory, name)
            self._appeared(directory, name, is_directory, made=False)
            return
        directory.entries.pop(name, None)
        if old is not None:
            self._forget(old)
        del pair.directory.entries[pair.name]
        directory.entries[name] = node
        if node is not None:
            node.name, node.parent = name, directory
        self._tell_move(source, directory.path(name), is_directory, replaced)
        if node is not None:
            self._doubtful.extend(fresh for fresh in self._fresh if self._is_below(fresh, node))
            if node.wd is None and self._recursive:
                self._watch(node, tell=True)

    def _touched(self, directory: Directory, event: RawEvent, is_directory: bool) -> None:
        if event.name not in directory.entries:
            self._appeared(directory, event.name, is_directory, made=True)
            return
        node = directory.entries[event.name]
        kind = "modify" if event.mask & flags.MODIFY else "attrib"
        self._tell(Change(kind, directory.path(event.name), is_directory))
        if node is not None and node.wd is None and self._recursive:
            self._watch(node, tell=True)  # perhaps its new mode lets us in

    # Watches and scans

    def _watch(self, top: Directory, *, tell: bool) -> None:
        """Watch a directory, then look what is in it already."""
        if self._attach(top, tell=tell):
            self._scan(top, tell=tell)

    def _attach(self, node: Directory, *, tell: bool) -> bool:
        try:
            wd = self._system.add(node.path())
        except (FileNotFoundError, NotADirectoryError):
            self._doubtful.append(node)  # gone, or moved on; an event that is on its way says which
            return False
        except PermissionError:
            self._emit_now(Change("unwatched", node.path(), True, reason="permission_denied"))
            return False
        except OSError as error:
            if not tell:
                raise
            self._emit_now(Change("unwatched", node.path(), True, reason=os.strerror(error.errno or 0)))
            return False
        other = self._by_wd.get(wd)
        if other is not None and other is not node:
            other.wd = None
            self._doubtful.append(other)
            self._confused = True
        if node.wd != wd:
            self._detach(node)  # another directory has its name now
        self._by_wd[wd] = node
        node.wd = wd
        self._fresh.add(node)
        return True

    def _detach(self, node: Directory) -> None:
        if node.wd is not None and self._by_wd.get(node.wd) is node:
            del self._by_wd[node.wd]
            self._system.drop(node.wd)
        node.wd = None

    def _scan(self, top: Directory, *, tell: bool) -> None:
        """With a stack: trees may be deeper than Python recurses."""
        stack = [top]
        while stack:
            node = stack.pop()
            for entry in self._read(node) or ():
                if entry.name in node.entries:
                    continue
                below = Directory(entry.name, node) if entry.is_directory else None
                node.entries[entry.name] = below
                if tell:
                    self._tell(Change("create", node.path(entry.name), entry.is_directory))
                if below is not None and self._recursive and self._attach(below, tell=tell):
                    stack.append(below)

    def _compare(self, top: Directory, since_ns: int) -> None:
        stack = [top]
        while stack:
            node = stack.pop()
            if (node is self._root or self._recursive) and not self._attach(node, tell=True):
                if node is self._root:
                    self.stopped = "deleted"
                    return
                continue
            entries = self._read(node)
            if entries is None:
                continue
            found = {entry.name: entry for entry in entries}
            for name in [name for name in node.entries if name not in found]:
                self._vanished(node, name)
            for name, entry in found.items():
                known = node.entries.get(name)
                if name in node.entries and (known is not None) == entry.is_directory:
                    if known is None and entry.changed_ns >= since_ns:
                        self._tell(Change("modify", node.path(name)))
                    elif known is not None and self._recursive:
                        stack.append(known)
                    continue
                self._vanished(node, name)
                self._add(node, name, entry.is_directory, tell=True)

    def _read(self, node: Directory) -> list[Entry] | None:
        """None: it could not be read."""
        try:
            entries = list(self._system.entries(node.path()))
        except (FileNotFoundError, NotADirectoryError):
            self._doubtful.append(node)
            return None
        except PermissionError:
            return None
        return [entry for entry in entries if not self._is_hidden(node, entry.name)]

    def _settle_confusion(self) -> None:
        """No events are left: what was watched before that is what it seems, and the disk can be compared with."""
        self._fresh.clear()
        if self._confused or self._doubtful:
            self._confused = False
            self._doubtful.clear()
            self._compare(self._root, since_ns=NOTHING_SINCE)

    def _settle_doubts(self) -> None:
        """Once for each; one that still cannot be found waits for the events to come."""
        for _ in range(len(self._doubtful)):
            node = self._doubtful.popleft()
            if self._is_ours(node):
                self._compare(node, since_ns=NOTHING_SINCE)

    def _is_below(self, node: Directory, top: Directory) -> bool:
        at: Directory | None = node
        while at is not None and at is not top:
            at = at.parent
        return at is top

    def _is_ours(self, node: Directory) -> bool:
        at = node
        while at.parent is not None:
            if at.parent.entries.get(at.name) is not at:
                return False
            at = at.parent
        return at is self._root

    def _forget(self, top: Directory) -> None:
        stack = [top]
        while stack:
            node = stack.pop()
            self._detach(node)
            stack.extend(below for below in node.entries.values() if below is not None)

    # What is told

    def _is_hidden(self, directory: Directory, name: str) -> bool:
        return self._hidden(name) or self._globs.excludes(directory.path(name))

    def _hides(self, path: str) -> bool:
        return self._hidden(path.rpartition("/")[2]) or self._globs.excludes(path)

    def _tell(self, change: Change) -> None:
        """Include chooses files; directories are always told, for what happens to them happens to what they hold."""
        if change.is_directory or self._globs.includes(change.path):
            self._emit_now(change)

    def _tell_move(self, source: str, destination: str, is_directory: bool, replaced: bool) -> None:
        from_here = is_directory or self._globs.includes(source)
        to_here = is_directory or self._globs.includes(destination)
        if from_here and to_here:
            self._emit_now(Change("move", source, is_directory, destination, replaced))
        elif from_here:
            self._emit_now(Change("delete", source, is_directory))
        elif to_here:
            self._emit_now(Change("modify" if replaced else "create", destination, is_directory))
