"""The pure part of watches, against a disk of the test's own that changes while it is looked at."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import pytest
from inotify_simple import flags

from cloche_guest.files.coalesce import Coalescer
from cloche_guest.files.globs import GlobFilter, to_regex, to_ripgrep
from cloche_guest.files.watch_tree import Change, Entry, RawEvent, WatchTree


class Node:
    """An inode. ``entries`` None: a file."""

    def __init__(self, is_directory: bool) -> None:
        self.entries: dict[str, Node] | None = {} if is_directory else None
        self.wd: int | None = None


class Disk:
    """Directories, and what inotify would tell of them. `busy` is called whenever somebody looks."""

    def __init__(self, chance: random.Random, limit: int | None = None) -> None:
        self.root = Node(True)
        self.queue: list[RawEvent] = []
        self.busy = 0.0
        self.changes_left = 0
        self._chance = chance
        self._limit = limit
        self._wds = 0
        self._cookies = 0
        self._overflowed = False

    # WatchSystem

    def add(self, path: str) -> int:
        self._others_work()
        node = self._find(path)
        if node.wd is None:
            self._wds += 1
            node.wd = self._wds
        return node.wd

    def drop(self, wd: int) -> None:
        for node in self._all(self.root):
            if node.wd == wd:
                node.wd = None

    def entries(self, path: str) -> Iterable[Entry]:
        self._others_work()
        found = self._find(path).entries
        assert found is not None
        return [Entry(name, node.entries is not None, 0) for name, node in found.items()]

    def _find(self, path: str) -> Node:
        node = self.root
        for part in path.split("/") if path else []:
            if node.entries is None or part not in node.entries:
                raise FileNotFoundError(path)
            node = node.entries[part]
        if node.entries is None:
            raise NotADirectoryError(path)
        return node

    # What happens

    def change(self) -> None:
        """Anything."""
        directories = [node for node in self._all(self.root) if node.entries is not None]
        parent = self._chance.choice(directories)
        assert parent.entries is not None
        name = self._chance.choice("abc")
        kind = self._chance.random()
        if name not in parent.entries:
            self._make(parent, name, kind < 0.6)
        elif kind < 0.3:
            self._remove(parent, name)
        else:
            self._move(parent, name, self._chance.choice(directories), self._chance.choice("abc"))

    def _make(self, parent: Node, name: str, is_directory: bool) -> None:
        assert parent.entries is not None
        parent.entries[name] = Node(is_directory)
        self._say(parent, flags.CREATE, name, is_directory)

    def _remove(self, parent: Node, name: str) -> None:
        assert parent.entries is not None
        node = parent.entries[name]
        for child in list(node.entries or ()):
            self._remove(node, child)
        del parent.entries[name]
        if node.wd is not None:
            self._put(RawEvent(node.wd, flags.IGNORED, 0, ""))
        self._say(parent, flags.DELETE, name, node.entries is not None)

    def _move(self, parent: Node, name: str, target: Node, new_name: str) -> None:
        assert parent.entries is not None
        assert target.entries is not None
        node = parent.entries[name]
        if target in self._all(node) or (target is parent and new_name == name):
            return
        present = target.entries.get(new_name)
        if present is not None:
            if (present.entries is not None) != (node.entries is not None) or present.entries:
                return
            if present.wd is not None:
                self._put(RawEvent(present.wd, flags.IGNORED, 0, ""))
        target.entries[new_name] = parent.entries.pop(name)
        self._cookies += 1
        self._say(parent, flags.MOVED_FROM, name, node.entries is not None, self._cookies)
        self._say(target, flags.MOVED_TO, new_name, node.entries is not None, self._cookies)

    def _say(self, parent: Node, mask: int, name: str, is_directory: bool, cookie: int = 0) -> None:
        if parent.wd is not None:
            self._put(RawEvent(parent.wd, mask | (flags.ISDIR if is_directory else 0), cookie, name))

    def _put(self, event: RawEvent) -> None:
        if self._limit is not None and len(self.queue) >= self._limit:
            if not self._overflowed:
                self.queue.append(RawEvent(-1, flags.Q_OVERFLOW, 0, ""))
            self._overflowed = True
        else:
            self.queue.append(event)

    def _others_work(self) -> None:
        while self.changes_left and self._chance.random() < self.busy:
            self.changes_left -= 1
            self.change()

    def _all(self, top: Node) -> Iterator[Node]:
        yield top
        for node in list((top.entries or {}).values()):
            yield from self._all(node)

    def take(self) -> list[RawEvent]:
        events, self.queue, self._overflowed = self.queue, [], False
        return events

    def tree(self, top: Node | None = None, prefix: str = "") -> dict[str, bool]:
        found = {}
        for name, node in ((top or self.root).entries or {}).items():
            found[prefix + name] = node.entries is not None
            found |= self.tree(node, f"{prefix}{name}/") if node.entries is not None else {}
        return found


class Reader:
    """What a client does with the events."""

    def __init__(self, tree: dict[str, bool]) -> None:
        self.tree = tree

    def take(self, change: Change) -> None:
        path = change.path
        if change.kind == "create":
            assert path not in self.tree, change
            assert "/" not in path or self.tree[path.rpartition("/")[0]], change
            self.tree[path] = change.is_directory
        elif change.kind == "delete":
            assert self.tree.pop(path) == change.is_directory
            self._drop_below(path)
        elif change.kind == "move":
            assert change.destination is not None
            assert change.replaced == (change.destination in self.tree), change
            self.tree.pop(change.destination, None)
            self._drop_below(change.destination)
            self.tree[change.destination] = self.tree.pop(path)
            for name in [name for name in self.tree if name.startswith(f"{path}/")]:
                self.tree[change.destination + name[len(path) :]] = self.tree.pop(name)

    def _drop_below(self, path: str) -> None:
        for name in [name for name in self.tree if name.startswith(f"{path}/")]:
            del self.tree[name]


@pytest.mark.parametrize("limit", [None, 12])
@pytest.mark.parametrize("busy", [0.0, 0.3, 0.7])
def test_events_amount_to_the_disk_whatever_the_timing(busy: float, limit: int | None) -> None:
    """Nothing lost and nothing told twice, while others work between every two looks of ours; also when the queue overflows."""
    for seed in range(100):
        chance = random.Random(f"{seed} {busy} {limit}")
        disk = Disk(chance, limit)
        for _ in range(8):
            disk.change()
        disk.take()
        reader = Reader({})
        tree = WatchTree(disk, GlobFilter(), reader.take, recursive=True, hidden=lambda _: False)
        tree.start()
        reader.tree |= disk.tree()
        disk.busy, disk.changes_left = busy, 150
        for _ in range(400):
            while disk.changes_left and chance.random() < 0.6:
                disk.changes_left -= 1
                disk.change()
            tree.handle(disk.take())
            if tree.overflowed:
                tree.rescan(0)
            if not disk.changes_left and not disk.queue and not tree.in_doubt:
                break
        assert reader.tree == disk.tree(), f"seed {seed}"
        watched = {node.wd for node in disk._all(disk.root) if node.entries is not None}
        assert None not in watched, f"seed {seed}: a directory is not watched"
        assert tree.directories == len(watched)


def run(coalescer: Coalescer, *steps: tuple[float, Change | None]) -> list[tuple[float, str, str]]:
    """(when, kind, path) of what is given out; None: time passes."""
    told = []
    for now, change in steps:
        told += [(now, out.kind, out.path) for out in coalescer.due(now)]
        if change is not None:
            told += [(now, out.kind, out.path) for out in coalescer.take(change, now)]
    return told


def modify(path: str) -> Change:
    return Change("modify", path)


def test_the_first_change_passes_at_once_and_the_last_is_told() -> None:
    coalescer = Coalescer(1.0)
    told = run(
        coalescer, (0, modify("a")), (0.2, modify("a")), (0.4, modify("a")), (0.5, modify("b")), (1.0, None), (1.5, None),
        (1.6, modify("a")), (2.0, None), (5.0, modify("a")),
    )  # fmt: skip
    assert told == [
        (0, "modify", "a"),
        (0.5, "modify", "b"),
        (1.0, "modify", "a"),
        (2.0, "modify", "a"),
        (5.0, "modify", "a"),
    ]


def test_order_is_kept_around_moves_and_deletes() -> None:
    coalescer = Coalescer(1.0)
    told = run(
        coalescer, (0, Change("create", "a")), (0.1, modify("a")), (0.2, Change("move", "a", destination="b")),
        (0.3, modify("b")), (0.4, modify("b")), (0.5, Change("delete", "b")), (9, None),
    )  # fmt: skip
    assert [entry[1:] for entry in told] == [
        ("create", "a"), ("modify", "a"), ("move", "a"), ("modify", "b"), ("delete", "b"),
    ]  # fmt: skip
    directory = run(Coalescer(1.0), (0, modify("d/a")), (0.1, modify("d/a")), (0.2, Change("delete", "d", True)))
    assert [entry[1] for entry in directory] == ["modify", "modify", "delete"]


def test_no_window_holds_nothing() -> None:
    assert len(run(Coalescer(0), *((0.0, modify("a")) for _ in range(5)))) == 5


def test_what_is_remembered_is_bounded_by_the_window() -> None:
    coalescer = Coalescer(0.05)
    for n in range(10_000):
        list(coalescer.take(modify(str(n)), n / 1000))
    assert len(coalescer._told) < 100


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.py", ["a.py", "x/y/a.py", ".py"], ["a.pyc", "a.py/b"]),
        ("src/*.py", ["src/a.py"], ["a/src/a.py", "src/b/a.py"]),
        ("**/x", ["x", "a/x", "a/b/x"], ["ax", "x/a"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "b/a/c"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb"]),
        ("?.[ch]", ["a.c", "x/b.h"], ["ab.c", "a.d"]),
        ("[!a]", ["b"], ["a", "/"]),
        ("[]]", ["]"], ["a"]),
        ("[z-a]", [], ["z", "a"]),
        ("[", ["["], ["a"]),
        ("{a,b}", ["{a,b}"], ["a"]),
        ("a\\*", ["a\\b"], ["a*"]),
        ("node_modules", ["node_modules", "a/node_modules"], ["node_modules/x"]),
        ("build/", ["build", "a/build"], ["builds"]),
        ("*\n*", ["a\nb"], ["ab"]),
    ],
)
def test_globs(pattern: str, yes: list[str], no: list[str]) -> None:
    import re

    compiled = re.compile(to_regex(pattern))
    assert [path for path in yes if not compiled.fullmatch(path)] == []
    assert [path for path in no if compiled.fullmatch(path)] == []


def test_ripgreps_syntax() -> None:
    assert to_ripgrep("!a{b}\\") == "\\!a\\{b\\}\\\\"
