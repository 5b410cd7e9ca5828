"""Lists, globs, search, hashes, and changes of names."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from file_calls import NOBODY, code, post, put, unmount, url, worker_pid
from guest_process import Guest

# Looking


def test_a_list_in_pages_is_complete_and_in_order(guest: Guest, home: Path) -> None:
    for directory in ("a", "a/b", "c"):
        (home / directory).mkdir()
        for n in range(7):
            (home / directory / f"f{n}").write_text("")
    expected = sorted(str(path.relative_to(home)).split("/") for path in home.rglob("*"))
    for limit in (1, 2, 5, 100):
        found, page = [], ""
        while True:
            answer = guest.http.get(url("list", home, depth=5, limit=limit, **({"page": page} if page else {}))).json()
            assert len(answer["items"]) <= limit
            found += [item["path"].removeprefix(f"{home}/").split("/") for item in answer["items"]]
            page = answer["next_page"]
            if page is None:
                break
        assert found == expected


def test_what_cannot_be_read_is_said(guest: Guest, home: Path) -> None:
    """superradcompany/microsandbox#949: files vanish from listings when something fails."""
    (home / "closed").mkdir(mode=0o700)
    (home / "open").mkdir()
    (home / "open/f").write_text("")
    items = guest.http.get(url("list", home, depth=3)).json()["items"]
    assert [(item["name"], item["error"]) for item in items] == [
        ("closed", "permission_denied"), ("open", None), ("f", None),
    ]  # fmt: skip


def test_a_list_without_descriptors_fails_and_leaves_nothing_out(guest: Guest, home: Path) -> None:
    """superradcompany/microsandbox#949: a limit of open files made files vanish from listings."""
    deep = home
    for n in range(60):
        deep = deep / f"d{n}"
    deep.mkdir(parents=True)
    assert len(guest.http.get(url("list", home, depth=100)).json()["items"]) == 60
    worker = worker_pid(guest)
    try:
        limit_files(worker, 40)
        assert code(guest.http.get(url("list", home, depth=100))) == "limit_reached"
    finally:
        limit_files(worker, 4096)


def limit_files(pid: int, soft: int) -> None:
    """As its user: root without all capabilities may not."""
    command = ["prlimit", "--pid", str(pid), f"--nofile={soft}:"]
    subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], check=True)


def test_stat_says_what_lstat_says(guest: Guest, home: Path) -> None:
    (home / "f").write_text("12345")
    (home / "l").symlink_to("f")
    os.mkfifo(home / "p")
    link = guest.http.get(url("stat", home / "l")).json()
    assert (link["type"], link["link_target"], link["etag"]) == ("symlink", "f", None)
    assert guest.http.get(url("stat", home / "l", follow="true")).json()["size"] == 5
    assert guest.http.get(url("stat", home / "p")).json()["type"] == "fifo"
    os.utime(home / "f", (0, 2**62))
    assert guest.http.get(url("stat", home / "f")).is_success, "whatever time it says"


def test_globs(guest: Guest, home: Path) -> None:
    """langchain-ai/deepagents#3922, #4978: the same pattern must mean the same everywhere; here it does in lists and searches."""
    for name in ("a.py", "b.txt", "src/c.py", "src/deep/d.py", "src/{x}.py", "node_modules/m/e.py", ".hidden/h.py"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("needle\n")
    cases = {
        "*.py": [".hidden/h.py", "a.py", "node_modules/m/e.py", "src/c.py", "src/deep/d.py", "src/{x}.py"],
        "src/*.py": ["src/c.py", "src/{x}.py"],
        "src/**/*.py": ["src/c.py", "src/deep/d.py", "src/{x}.py"],
        "{x}.py": ["src/{x}.py"],
        "[ab].*": ["a.py", "b.txt"],
        "[!a-c].py": [".hidden/h.py", "node_modules/m/e.py", "src/deep/d.py"],
        "?.txt": ["b.txt"],
    }
    for pattern, expected in cases.items():
        globbed = guest.http.get(url("glob", home, pattern=pattern)).json()
        files = [path for path in globbed["paths"] if (home / path).is_file()]
        assert files == expected, pattern
        searched = post(guest, "search", home, pattern="needle", include=[pattern]).json()
        assert sorted(match["path"] for match in searched["matches"]) == expected, pattern
    kept = guest.http.get(url("glob", home, pattern="*.py", exclude="node_modules", limit=3)).json()
    assert kept == {"paths": [".hidden/h.py", "a.py", "src/c.py"], "truncated": True}


def test_a_pattern_of_many_stars_takes_no_time(guest: Guest, home: Path) -> None:
    (home / ("a" * 200)).write_text("")
    assert guest.http.get(url("glob", home, pattern="*a" * 60 + "b")).json()["paths"] == []


def test_search(guest: Guest, home: Path) -> None:
    (home / "t.txt").write_bytes(b"one\nTwo needle three needle\n\xff needle\n")
    (home / "long").write_text("x" * 10_000 + "needle" + "y" * 10_000)
    (home / ".gitignore").write_text("ignored\n")
    (home / "ignored").write_text("needle")
    (home / "binary").write_bytes(b"\0needle")
    found = post(guest, "search", home, pattern="needle").json()
    assert [(match["path"], match["line"]) for match in found["matches"]] == [
        ("ignored", 1), ("long", 1), ("t.txt", 2), ("t.txt", 3),
    ]  # fmt: skip
    for match in found["matches"]:
        assert match["text"][match["start"] : match["end"]] == "needle"
        assert len(match["text"]) <= 500
    assert not found["truncated"]
    few = post(guest, "search", home, pattern="needle", max_matches=2).json()
    assert (len(few["matches"]), few["truncated"]) == (2, True)
    assert len(post(guest, "search", home, pattern="two|ONE", regex=True, ignore_case=True).json()["matches"]) == 2
    assert code(post(guest, "search", home, pattern="(", regex=True)) == "invalid_request"
    assert post(guest, "search", home, pattern="(").json()["matches"] == []
    one = post(guest, "search", home / "t.txt", pattern="Two").json()["matches"]
    assert [match["line"] for match in one] == [2]
    assert code(post(guest, "search", home / "none", pattern="x")) == "not_found"


# Changes


def test_move_and_copy(guest: Guest, home: Path) -> None:
    put(guest, home / "a", b"a", mode="750")
    put(guest, home / "b", b"b")
    assert code(post(guest, "move", home / "a", destination=str(home / "b"))) == "already_exists"
    assert code(post(guest, "copy", home / "a", destination=str(home / "b"))) == "already_exists"
    assert post(guest, "copy", home / "a", destination=str(home / "b"), overwrite=True).json()["mode"] == "0750"
    assert (home / "b").read_bytes() == b"a"
    assert post(guest, "move", home / "a", destination=str(home / "b"), overwrite=True).is_success
    assert not (home / "a").exists()
    assert code(post(guest, "copy", home, destination=str(home / "x/y"), recursive=True)) in (
        "file_failed",
        "not_found",
    )


def test_move_between_file_systems(guest: Guest, home: Path) -> None:
    disk = home / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=777", "tmpfs", str(disk)], check=True)
    try:
        put(guest, home / "tree/f", b"x", parents="true")
        (home / "tree/l").symlink_to("f")
        assert post(guest, "move", home / "tree", destination=str(disk / "tree")).is_success
        assert (disk / "tree/f").read_bytes() == b"x"
        assert (disk / "tree/l").is_symlink()
        assert not (home / "tree").exists()
    finally:
        unmount(disk)


def test_a_deep_tree_is_removed_copied_and_listed(guest: Guest, home: Path) -> None:
    """Deeper than Python recurses and than a path may be long."""
    before = os.getcwd()
    os.chdir(home)
    try:
        for _ in range(700):
            os.mkdir("d" * 10)
            os.chown("d" * 10, NOBODY, NOBODY)
            os.chdir("d" * 10)
    finally:
        os.chdir(before)
    top = home / ("d" * 10)
    assert post(guest, "copy", top, destination=str(home / "copy"), recursive=True).status_code == 201
    assert len(guest.http.get(url("list", home, depth=1000, limit=10_000)).json()["items"]) == 1400
    assert post(guest, "remove", top, recursive=True).json() == {"removed": 700}
    assert post(guest, "remove", home / "copy", recursive=True).json() == {"removed": 700}


# Hashes


def hashes_of(guest: Guest, path: Path, **query: Any) -> list[Any]:
    answer = guest.http.get(url("hashes", path, **query))
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def test_hashes_say_what_everything_below_a_directory_is(guest: Guest, home: Path) -> None:
    (home / "d").mkdir()
    (home / "d/a").write_bytes(b"x" * 3_000_000)
    (home / "b").symlink_to("nowhere")
    os.mkfifo(home / "c")
    assert hashes_of(guest, home) == [
        ["b", "-> nowhere"],
        ["c", "fifo"],
        ["d", "directory"],
        ["d/a", hashlib.sha256(b"x" * 3_000_000).hexdigest()],
    ]


def test_hashes_say_what_cannot_be_read_and_that_there_are_more(guest: Guest, home: Path) -> None:
    (home / "a").write_text("secret")
    (home / "a").chmod(0o600)
    (home / os.fsdecode(b"b\xff")).write_text("")
    (home / "c").write_text("")
    empty = hashlib.sha256().hexdigest()
    assert hashes_of(guest, home, limit=2) == [["a", "permission_denied"], ["b\x00ff", empty], None]
    assert hashes_of(guest, home, limit=3)[2:] == [["c", empty]]
    assert code(guest.http.get(url("hashes", home / "c"))) == "not_directory"
