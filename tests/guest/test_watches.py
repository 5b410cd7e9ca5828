"""Watches, against a real guest and a real disk."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guest_process import TIMEOUT_S, Guest, is_running, parse_sse, wait_for

from cloche.path_text import from_text, to_text

Json = dict[str, Any]

FILES = 20_000 if os.environ.get("CLOCHE_TEST_FULL") else 6000


@pytest.fixture
def home(guest: Guest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("watched")


class Reader:
    """The events of one watch, read in a thread, and the tree they amount to: path -> is a directory."""

    def __init__(self, guest: Guest, watch_id: str, cursor: str | None = None) -> None:
        self.events: list[Json] = []
        self.tree: dict[str, bool] = {}
        self.problems: list[str] = []
        self._guest = guest
        self._path = f"/v1/watches/{watch_id}/events"
        self._query = {"cursor": cursor} if cursor else {}
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(Exception), self._guest.http.stream("GET", self._path, params=self._query) as answer:
            for event in parse_sse(answer.iter_lines()):
                with self._news:
                    self.events.append(event)
                    self._apply(event["type"], event["data"])
                    self._news.notify_all()

    def _apply(self, kind: str, data: Json) -> None:
        path = data.get("path", "")
        if kind == "create":
            if path in self.tree:
                self.problems.append(f"created twice: {path}")
            self.tree[path] = data["is_directory"]
        elif kind == "delete":
            self._drop(path)
        elif kind == "move":
            self._drop(data["destination"])
            moved = [name for name in self.tree if name == path or name.startswith(path + "/")]
            if not moved:
                self.problems.append(f"moved out of nowhere: {path}")
            for name in moved:
                self.tree[data["destination"] + name[len(path) :]] = self.tree.pop(name)
        elif kind == "modify" and path not in self.tree:
            self.problems.append(f"modified out of nowhere: {path}")
        elif kind == "gap":
            self.problems.append("gap")

    def _drop(self, path: str) -> None:
        if self.tree.get(path):
            for name in [name for name in self.tree if name.startswith(path + "/")]:
                del self.tree[name]
        self.tree.pop(path, None)

    def wait(self, kind: str, **data: Any) -> Json:
        """The first event like that."""

        def found() -> Json | None:
            return next(
                (e for e in self.events if e["type"] == kind and all(e["data"].get(k) == v for k, v in data.items())),
                None,
            )

        with self._news:
            assert self._news.wait_for(found, TIMEOUT_S), f"no {kind} {data} in {self.events[-20:]}"
            event = found()
        assert event is not None
        return event

    def wait_tree(self, tree: dict[str, bool]) -> None:
        """Until the events amount to that: those of one directory may come after those of a later one."""
        with self._news:
            self._news.wait_for(lambda: self.tree == tree, TIMEOUT_S)
            assert self.tree == tree

    def join(self) -> None:
        """After the end of the watch."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def kinds(self, path: str) -> list[str]:
        return [event["type"] for event in self.events if event["data"].get("path") == path]


def start(guest: Guest, path: Path, **options: Any) -> str:
    body = {"path": to_text(str(path)), "coalesce_ms": 0, **options}
    return str(guest.call("POST", "/v1/watches", body, status=201)["id"])


@contextlib.contextmanager
def watching(guest: Guest, path: Path, **options: Any) -> Iterator[Reader]:
    watch_id = start(guest, path, **options)
    reader = Reader(guest, watch_id)
    try:
        yield reader
    finally:
        guest.http.delete(f"/v1/watches/{watch_id}")
        reader.join()


def on_disk(path: Path) -> dict[str, bool]:
    found = {}
    for top, directories, files in os.walk(path):
        base = os.path.relpath(top, path)
        for name in (*directories, *files):
            full = name if base == "." else f"{base}/{name}"
            is_directory = os.path.isdir(f"{path}/{full}") and not os.path.islink(f"{path}/{full}")
            found[to_text(full)] = is_directory
    return found


def test_the_life_of_a_file(guest: Guest, home: Path) -> None:
    with watching(guest, home) as reader:
        (home / "a").write_text("1")
        reader.wait("modify", path="a")
        (home / "a").chmod(0o600)
        reader.wait("attrib", path="a", is_directory=False)
        (home / "a").rename(home / "b")
        move = reader.wait("move", path="a")
        assert move["data"] == {"path": "a", "destination": "b", "is_directory": False, "replaced": False}
        (home / "c").write_text("")
        (home / "c").rename(home / "b")
        assert reader.wait("move", path="c")["data"]["replaced"] is True
        (home / "b").unlink()
        reader.wait("delete", path="b", is_directory=False)
        assert reader.kinds("a")[:2] == ["create", "modify"]
        assert not reader.problems


@pytest.mark.parametrize("name", [b"a|b", b"new\nline", b"caf\xe9", b"\xff", "ü".encode(), b"-", b"x y'\""])
def test_exact_names(guest: Guest, home: Path, name: bytes) -> None:
    """behaviour.md 2.5: a vertical bar cut the path, a newline broke the parser, anything on stderr ended the watch."""
    with watching(guest, home) as reader:
        directory = os.fsencode(home) + b"/" + name
        os.mkdir(directory)
        with open(directory + b"/" + name, "wb"):
            pass
        path = to_text(os.fsdecode(name))
        reader.wait("create", path=f"{path}/{path}")
        os.rename(directory, directory + b"2")
        destination = reader.wait("move", path=path)["data"]["destination"]
        assert os.fsencode(from_text(destination)) == name + b"2"
        assert "gap" not in reader.problems


def test_new_directories_lose_nothing_and_tell_nothing_twice(guest: Guest, home: Path) -> None:
    """The race of every recursive watch: what is made before the new directory is watched."""
    with watching(guest, home) as reader:
        for n in range(100):
            os.makedirs(home / f"d{n}/a/b/c")
            (home / f"d{n}/a/b/c/f").write_text("x")
            (home / f"d{n}/a/f").write_text("x")
        reader.wait("create", path="d99/a/f")
        reader.wait("create", path="d99/a/b/c/f")
        reader.wait_tree(on_disk(home))
        assert not reader.problems


def test_thousands_of_files_in_new_directories(guest: Guest, home: Path) -> None:
    """Created, moved and deleted in nested new directories: the state computed from the events is that of the disk."""
    chance = random.Random(7)
    with watching(guest, home) as reader:
        directories = [home]
        files: list[Path] = []
        for n in range(FILES):
            if n % 40 == 0:
                parent = chance.choice(directories[-30:])
                new = parent / f"d{n}"
                new.mkdir()
                directories.append(new)
            path = directories[-1] / f"f{n}"
            path.touch()
            files.append(path)
            if n % 7 == 0:
                old = files.pop(chance.randrange(len(files)))
                target = chance.choice(directories) / f"m{n}"
                old.rename(target)
                files.append(target)
            if n % 5 == 0:
                files.pop(chance.randrange(len(files))).unlink()
        for n in range(20):
            # Whole subtrees move, too; paths in `files` are not used any more.
            source = chance.choice(directories[5:])
            with contextlib.suppress(OSError):
                source.rename(chance.choice(directories) / f"moved{n}")
        shutil.rmtree(chance.choice(directories[100:]), ignore_errors=True)
        (home / "last").touch()
        reader.wait("create", path="last")
        reader.wait_tree(on_disk(home))
        assert not reader.problems


def workers_of(guest: Guest) -> list[int]:
    found = ["pgrep", "-P", str(guest.process.pid), "-f", "files.worker"]
    pids = [int(pid) for pid in subprocess.run(found, capture_output=True, check=True).stdout.split()]
    return [pid for pid in pids if is_running(pid)]


def _stop(pids: list[int]) -> None:
    """Every worker of the guest, and not one event before all of their threads stand still."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda pid=pid: _stands_still(pid), f"the stop of {pid}")  # type: ignore[misc]


def _stands_still(pid: int) -> bool:
    with contextlib.suppress(OSError):  # a thread that ended while we looked
        return all(") T " in (thread / "stat").read_text() for thread in Path(f"/proc/{pid}/task").iterdir())
    return False


def test_overflow_is_said_and_recovered_from(guest: Guest, home: Path) -> None:
    """cloudflare/sandbox-sdk drops events in silence after 1000 (behaviour.md 1.7). A stopped worker fills the queue."""
    (home / "old").write_text("1")
    (home / "gone").write_text("1")
    with watching(guest, home) as reader:
        (home / "first").touch()
        reader.wait("create", path="first")
        reader.tree |= {"old": False, "gone": False}
        workers = workers_of(guest)
        _stop(workers)
        try:
            limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
            (home / "sub").mkdir()
            for n in range(limit // 2 + 100):
                (home / f"x{n}").touch()
                (home / f"x{n}").unlink()
            (home / "sub/after").touch()
            (home / "old").write_text("22")
            (home / "gone").unlink()
        finally:
            for pid in workers:
                os.kill(pid, signal.SIGCONT)
        reader.wait("overflow")
        reader.wait("rescanned")
        reader.wait("modify", path="old")
        reader.wait_tree(on_disk(home))
        (home / "sub/later").touch()
        reader.wait("create", path="sub/later")
        assert not reader.problems


def test_a_directory_that_comes_in_or_goes_out(guest: Guest, home: Path) -> None:
    inside, outside = home / "in", home / "out"
    inside.mkdir()
    (outside / "tree/sub").mkdir(parents=True)
    (outside / "tree/sub/f").touch()
    with watching(guest, inside) as reader:
        (outside / "tree").rename(inside / "tree")
        reader.wait("create", path="tree/sub/f")
        reader.wait_tree(on_disk(inside))
        (inside / "tree/sub/g").touch()
        reader.wait("create", path="tree/sub/g")
        (inside / "tree").rename(outside / "back")
        reader.wait("delete", path="tree", is_directory=True)
        (outside / "back/sub/unseen").touch()
        (inside / "end").touch()
        reader.wait("create", path="end")
        reader.wait_tree({"end": False})


def test_globs_choose(guest: Guest, home: Path) -> None:
    with watching(guest, home, include=["*.py"], exclude=["node_modules", "build/*.py"]) as reader:
        for name in ("a.py", "a.txt", "node_modules/m/x.py", "src/b.py", "build/c.py"):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).touch()
        (home / "a.txt").rename(home / "t.py")
        (home / "a.py").rename(home / "a.gone")
        (home / "node_modules/m/x.py").rename(home / "n.py")
        reader.wait("create", path="n.py")
        reader.wait_tree({"src": True, "src/b.py": False, "build": True, "t.py": False, "n.py": False})
        assert not reader.problems


def test_flat_watches(guest: Guest, home: Path) -> None:
    (home / "sub").mkdir()
    with watching(guest, home, recursive=False) as reader:
        (home / "sub/f").touch()
        (home / "new").mkdir()
        (home / "new/f").touch()
        (home / "end").touch()
        reader.wait("create", path="end")
        reader.wait_tree({"new": True, "end": False})


def test_many_writes_in_a_short_time_are_few_events_and_the_last_is_told(guest: Guest, home: Path) -> None:
    with watching(guest, home, coalesce_ms=200) as reader:
        began = time.monotonic()
        with open(home / "log", "w") as file:
            for n in range(200):
                file.write(f"{n}\n")
                file.flush()
        reader.wait("modify", path="log")
        wait_for(lambda: len(reader.kinds("log")) >= 2, "the trailing event")
        assert len(reader.kinds("log")) <= 4 + (time.monotonic() - began) // 0.2


def test_atomic_writes_show_no_temporary_file(guest: Guest, home: Path) -> None:
    with watching(guest, home) as reader:
        for _ in range(2):
            guest.http.put("/v1/files/content", params={"path": str(home / "f")}, content=b"x").raise_for_status()
        reader.wait("modify", path="f")
        assert [event["type"] for event in reader.events if event["data"]["path"] != "f"] == []


def test_a_reader_goes_on_where_it_was(guest: Guest, home: Path) -> None:
    """behaviour.md 2.5: no event ids, no resume."""
    watch_id = start(guest, home)
    (home / "one").touch()
    reader = Reader(guest, watch_id)
    first = reader.wait("create", path="one")
    (home / "two").touch()
    again = Reader(guest, watch_id, first["cursor"])
    again.wait("create", path="two")
    assert again.events[0]["data"]["path"] == "two"
    guest.call("DELETE", f"/v1/watches/{watch_id}")
    assert again.wait("stopped")["data"] == {"reason": "removed"}
    for each in (reader, again):
        each.join()


def changes(guest: Guest, watch_id: str, since: str, **query: Any) -> Json:
    answer: Json = guest.http.get(f"/v1/watches/{watch_id}/changes", params={"since": since, **query}).json()
    return answer


def test_changes_since_a_cursor(guest: Guest, home: Path) -> None:
    watch_id = start(guest, home)
    cursor = guest.call("GET", f"/v1/watches/{watch_id}")["cursor"]
    assert changes(guest, watch_id, cursor)["status"] == "unchanged"
    for n in range(5):
        (home / str(n)).mkdir()
    wait_for(lambda: len(changes(guest, watch_id, cursor)["events"]) == 5, "five events")
    some = changes(guest, watch_id, cursor, limit=2)
    assert (some["status"], len(some["events"]), some["more"]) == ("changed", 2, True)
    rest = changes(guest, watch_id, some["cursor"])
    assert [event["data"]["path"] for event in rest["events"]] == ["2", "3", "4"]
    assert changes(guest, watch_id, rest["cursor"])["status"] == "unchanged"
    epoch, seq, offset = cursor.split(".")
    foreign = changes(guest, watch_id, f"{'0' * len(epoch)}.{seq}.{offset}")
    assert (foreign["status"], foreign["reason"], foreign["cursor"]) == ("resync", "foreign_cursor", rest["cursor"])
    assert changes(guest, watch_id, "nonsense")["code"] == "malformed_cursor"
    guest.call("DELETE", f"/v1/watches/{watch_id}")
    assert changes(guest, watch_id, cursor)["code"] == "gone"


def test_the_end_of_what_is_watched(guest: Guest, home: Path) -> None:
    root = home / "root"
    for change, reason in ((shutil.rmtree, "deleted"), (lambda path: path.rename(home / "elsewhere"), "moved")):
        root.mkdir()
        watch_id = start(guest, root)
        reader = Reader(guest, watch_id)
        change(root)
        assert reader.wait("stopped")["data"] == {"reason": reason}
        assert guest.call("GET", f"/v1/watches/{watch_id}")["state"] == "stopped"
        guest.call("DELETE", f"/v1/watches/{watch_id}")
        reader.join()


def test_errors(guest: Guest, home: Path) -> None:
    (home / "file").touch()
    for body, expected in (
        ({"path": str(home / "none")}, "not_found"),
        ({"path": str(home / "file")}, "not_directory"),
        ({"path": str(home), "exclude": ["/"]}, "invalid_request"),
        ({"path": str(home), "user": "root"}, "permission_denied"),
    ):
        answer = guest.http.post("/v1/watches", json=body)
        assert answer.json()["code"] == expected
    assert guest.http.get("/v1/watches/watch-000000000000").json()["code"] == "not_found"


def test_watches_have_a_limit(guest: Guest, home: Path) -> None:
    made = [start(guest, home) for _ in range(32)]
    try:
        answer = guest.http.post("/v1/watches", json={"path": str(home)})
        assert answer.json()["code"] == "limit_reached"
        assert answer.json()["details"] == {"kind": "watches", "limit": 32}
    finally:
        for watch_id in made:
            guest.call("DELETE", f"/v1/watches/{watch_id}")
    guest.call("DELETE", f"/v1/watches/{start(guest, home)}")


def test_one_that_nobody_reads_ends(guest: Guest, home: Path) -> None:
    """The other one is read in time, however slow the machine is: it must stay for as long as one that was not."""
    kept = start(guest, home, idle_timeout_s=3)
    reader = Reader(guest, kept)
    (home / "x").touch()
    reader.wait("create", path="x")
    watch_id = start(guest, home, idle_timeout_s=3)
    wait_for(lambda: guest.http.get(f"/v1/watches/{watch_id}").json().get("code") == "gone", "its end")
    (home / "y").touch()
    reader.wait("create", path="y")
    guest.call("DELETE", f"/v1/watches/{kept}")
    reader.join()


def test_what_cells_make_is_seen(guest: Guest, home: Path) -> None:
    with watching(guest, home) as reader:
        context = guest.create()
        context.ok(f"open({str(home / 'from a cell')!r}, 'w').close()")
        reader.wait("create", path="from a cell")
        guest.http.delete(context.path)


def test_a_killed_worker_is_said(guest: Guest, home: Path) -> None:
    watch_id = start(guest, home)
    reader = Reader(guest, watch_id)
    for pid in workers_of(guest):
        os.kill(pid, 9)
    assert reader.wait("stopped")["data"] == {"reason": "lost"}
    guest.call("DELETE", f"/v1/watches/{watch_id}")
    reader.join()
    guest.call("DELETE", f"/v1/watches/{start(guest, home)}")


def test_the_list(guest: Guest, home: Path) -> None:
    with watching(guest, home, include=["*.py"]):
        (item,) = guest.call("GET", "/v1/watches")["items"]
        assert (item["path"], item["include"], item["state"]) == (str(home), ["*.py"], "watching")
        assert item["directories"] == 1
        json.dumps(item)
