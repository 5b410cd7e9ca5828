"""Files, against a real guest whose worker is another user's process (nobody), so permission errors are real ones.

Every refusal has a twin that is allowed: a broken probe must not look like security.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from guest_process import Guest, parse_sse, running_guest, wait_for

from cloche.path_text import from_text, to_text

Json = dict[str, Any]
NOBODY = 65534


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with running_guest(CLOCHE_GUEST_USER="nobody") as running:
        running.home.parent.chmod(0o755)
        os.chown(running.home, NOBODY, NOBODY)
        yield running


@pytest.fixture
def home(guest: Guest, request: pytest.FixtureRequest) -> Path:
    """A directory of the user's, for one test."""
    path = guest.home / hashlib.sha1(request.node.name.encode()).hexdigest()[:12]
    path.mkdir()
    os.chown(path, NOBODY, NOBODY)
    return path


def url(name: str, path: str | bytes | Path, **query: Any) -> str:
    text = to_text(os.fsdecode(path))
    more = "".join(f"&{key}={quote(str(value), safe='')}" for key, value in query.items())
    return f"/v1/files/{name}?path={quote(text, safe='')}{more}"


def put(guest: Guest, path: str | bytes | Path, data: Any, headers: Json | None = None, **query: Any) -> httpx.Response:
    return guest.http.put(url("content", path, **query), content=data, headers=headers or {})


def get(guest: Guest, path: str | bytes | Path, **headers: str) -> httpx.Response:
    return guest.http.get(url("content", path), headers={k.replace("_", "-"): v for k, v in headers.items()})


def code(response: httpx.Response) -> str:
    assert response.is_error, response.text
    return str(response.json()["code"])


def post(guest: Guest, name: str, path: str | Path, **body: Any) -> httpx.Response:
    return guest.http.post(f"/v1/files/{name}", json={"path": to_text(os.fsdecode(path)), **body})


# Content


def test_what_is_written_is_read_byte_for_byte(guest: Guest, home: Path) -> None:
    data = bytes(range(256)) * 3
    written = put(guest, home / "a.bin", data)
    assert written.status_code == 201
    info = written.json()
    assert (info["size"], info["uid"], info["mode"]) == (768, NOBODY, "0644")
    read = get(guest, home / "a.bin")
    assert read.content == data
    assert read.headers["ETag"] == info["etag"] == written.headers["ETag"]
    assert read.headers["Content-Type"] == "application/octet-stream"
    assert put(guest, home / "a.bin", b"x", mode="600").json()["mode"] == "0600"
    assert put(guest, home / "a.bin", b"y").json()["mode"] == "0600", "a replaced file keeps its mode"
    assert [entry.name for entry in home.iterdir()] == ["a.bin"], "no temporary file is left"


def test_relative_paths_are_those_of_the_workspace(guest: Guest, home: Path) -> None:
    assert put(guest, f"{home.name}/r.txt", b"r").status_code == 201
    assert (home / "r.txt").read_bytes() == b"r"


def test_an_empty_file_and_a_file_of_proc(guest: Guest, home: Path) -> None:
    assert put(guest, home / "empty", b"").json()["size"] == 0
    assert get(guest, home / "empty").content == b""
    assert b"MemTotal" in get(guest, "/proc/meminfo").content  # it says that it has no bytes


def test_parents_are_made_when_asked(guest: Guest, home: Path) -> None:
    assert code(put(guest, home / "x/y/z", b"1")) == "not_found"
    assert put(guest, home / "x/y/z", b"1", parents="true").status_code == 201
    assert (home / "x/y").stat().st_uid == NOBODY


def test_appending(guest: Guest, home: Path) -> None:
    for text in (b"one\n", b"two\n"):
        assert guest.http.post(url("content", home / "log"), content=text).is_success
    assert (home / "log").read_bytes() == b"one\ntwo\n"


def test_writing_in_place_keeps_the_inode_and_atomic_replaces_it(guest: Guest, home: Path) -> None:
    put(guest, home / "f", b"1")
    inode = (home / "f").stat().st_ino
    os.link(home / "f", home / "second name")
    put(guest, home / "f", b"in place", atomic="false")
    assert (home / "second name").read_bytes() == b"in place"
    put(guest, home / "f", b"atomic")
    assert (home / "second name").read_bytes() == b"in place"
    assert (home / "f").stat().st_ino != inode


def test_a_link_stays_and_what_it_leads_to_is_written(guest: Guest, home: Path) -> None:
    put(guest, home / "target", b"1")
    (home / "link").symlink_to("target")
    put(guest, home / "link", b"2")
    assert (home / "link").is_symlink()
    assert (home / "target").read_bytes() == b"2"


@pytest.mark.parametrize(
    ("asked", "span"),
    [
        ("bytes=0-9", (0, 10)), ("bytes=990-", (990, 1000)), ("bytes=-5", (995, 1000)), ("bytes=5-5", (5, 6)),
        ("bytes=990-5000", (990, 1000)), ("bytes=-5000", (0, 1000)),
    ],
)  # fmt: skip
def test_ranges(guest: Guest, home: Path, asked: str, span: tuple[int, int]) -> None:
    data = bytes(i % 251 for i in range(1000))
    (home / "data").write_bytes(data)
    answer = get(guest, home / "data", Range=asked)
    assert answer.status_code == 206
    assert answer.content == data[slice(*span)]
    assert answer.headers["Content-Range"] == f"bytes {span[0]}-{span[1] - 1}/1000"


@pytest.mark.parametrize("asked", ["bytes=5-2", "bytes=0-1,4-5", "lines=1-2", "bytes=-", "bytes=a-b"])
def test_a_range_that_is_none_is_ignored(guest: Guest, home: Path, asked: str) -> None:
    (home / "data").write_bytes(b"x" * 10)
    answer = get(guest, home / "data", Range=asked)
    assert (answer.status_code, len(answer.content)) == (200, 10)


def test_a_range_behind_the_end_says_the_size(guest: Guest, home: Path) -> None:
    (home / "data").write_bytes(b"x" * 10)
    answer = get(guest, home / "data", Range="bytes=10-")
    assert code(answer) == "range_not_satisfiable"
    assert answer.status_code == 416
    assert answer.json()["details"]["size"] == 10


def test_conditions(guest: Guest, home: Path) -> None:
    etag = put(guest, home / "f", b"1").headers["ETag"]
    unchanged = get(guest, home / "f", If_None_Match=etag)
    assert (unchanged.status_code, unchanged.content, unchanged.headers["ETag"]) == (304, b"", etag)
    assert put(guest, home / "f", b"2", {"If-Match": etag}).status_code == 200
    late = put(guest, home / "f", b"3", {"If-Match": etag})
    assert (late.status_code, code(late)) == (412, "precondition_failed")
    assert late.json()["details"]["etag"] == get(guest, home / "f").headers["ETag"]
    assert (home / "f").read_bytes() == b"2"
    assert code(put(guest, home / "f", b"4", {"If-None-Match": "*"})) == "precondition_failed"
    assert put(guest, home / "new", b"4", {"If-None-Match": "*"}).status_code == 201
    assert code(put(guest, home / "none", b"4", {"If-Match": "*"})) == "precondition_failed"
    assert not (home / "none").exists()
    assert code(put(guest, home / "f", b"5", {"If-Match": "*"}, atomic="false")) == "invalid_request"


def test_of_two_writers_with_one_etag_one_wins(guest: Guest, home: Path) -> None:
    for _ in range(10):
        etag = put(guest, home / "f", b"start").headers["ETag"]
        answers: list[int] = []
        barrier = threading.Barrier(4)

        def write(
            text: bytes, etag: str = etag, barrier: threading.Barrier = barrier, answers: list[int] = answers
        ) -> None:
            with httpx.Client(base_url=guest.http.base_url) as http:
                barrier.wait()
                answers.append(
                    http.put(url("content", home / "f"), content=text, headers={"If-Match": etag}).status_code
                )

        threads = [threading.Thread(target=write, args=(bytes([65 + n]) * 100_000,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(answers) == [200, 412, 412, 412]
        assert len(set((home / "f").read_bytes())) == 1


# Errors


def test_every_refusal_has_its_code(guest: Guest, home: Path) -> None:
    (home / "dir/sub").mkdir(parents=True)
    (home / "file").write_bytes(b"")
    os.mkfifo(home / "fifo", 0o666)
    (home / "loop").symlink_to("loop")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "socket"))
        os.chown(home / "socket", NOBODY, NOBODY)
    (home / "secret").write_bytes(b"root's")
    (home / "secret").chmod(0o600)
    cases = [
        (get(guest, home / "none"), 404, "not_found"),
        (get(guest, home / "dir"), 409, "is_directory"),
        (get(guest, home / "file/x"), 409, "not_directory"),
        (get(guest, home / "fifo"), 409, "not_regular_file"),  # and does not wait for a writer
        (get(guest, home / "socket"), 409, "not_regular_file"),
        (get(guest, "/dev/zero"), 409, "not_regular_file"),  # nor read for ever
        (get(guest, home / "secret"), 403, "permission_denied"),
        (get(guest, home / "loop"), 409, "file_failed"),
        (get(guest, "/" + "x" * 300), 409, "file_failed"),
        (put(guest, home / "dir", b""), 409, "is_directory"),
        (put(guest, home / "fifo", b""), 409, "not_regular_file"),
        (put(guest, home / "fifo", b"", atomic="false"), 409, "not_regular_file"),
        (put(guest, "/etc/new", b""), 403, "permission_denied"),
        (put(guest, home / "file/x", b""), 409, "not_directory"),
        (post(guest, "mkdir", home / "dir"), 409, "already_exists"),
        (post(guest, "remove", home / "dir"), 409, "not_empty"),
        (post(guest, "remove", home / "none"), 404, "not_found"),
        (post(guest, "move", home / "file", destination=str(home / "dir")), 409, "already_exists"),
        (post(guest, "copy", home / "dir", destination=str(home / "dir2")), 409, "is_directory"),
        (post(guest, "copy", home / "fifo", destination=str(home / "f2")), 409, "not_regular_file"),
        (guest.http.get(url("list", home / "file")), 409, "not_directory"),
        (guest.http.get(url("stat", home / "none")), 404, "not_found"),
        (guest.http.get(url("tree", home / "file")), 409, "not_directory"),
    ]
    for answer, status, expected in cases:
        assert (answer.status_code, code(answer)) == (status, expected), answer.text
    details = cases[6][0].json()["details"]
    assert details == {"path": str(home / "secret"), "user": "user", "errno": "EACCES"}
    assert cases[0][0].json()["details"]["kind"] == "file"


def test_root_needs_sudo(guest: Guest, home: Path) -> None:
    """This guest's sandbox has none."""
    answer = guest.http.get(url("content", "/etc/shadow", user="root"))
    assert code(answer) == "permission_denied"
    assert answer.json()["details"]["user"] == "root"
    assert code(guest.http.get(url("content", "/etc/shadow"))) == "permission_denied"
    assert guest.http.get(url("content", "/etc/passwd")).is_success


def test_the_disk_may_be_full(guest: Guest, home: Path) -> None:
    """507, and the file that was there is as it was: not a 500, and not half of the new content."""
    disk = home / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=777", "tmpfs", str(disk)], check=False)
    assert mounted.returncode == 0
    try:
        assert put(guest, disk / "f", b"old").status_code == 201
        big = os.urandom(3_000_000)
        for options in ({}, {"atomic": "false"}):
            answer = put(guest, disk / f"f{len(options)}", big, **options)
            assert (answer.status_code, code(answer)) == (507, "no_space")
        assert code(put(guest, disk / "f", big)) == "no_space"
        assert (disk / "f").read_bytes() == b"old"
        (disk / "f1").unlink()
        assert sorted(entry.name for entry in disk.iterdir()) == ["f"]
        assert put(guest, disk / "g", b"x" * 500_000).status_code == 201, "there is space again"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# Links


def test_a_planted_link_gives_the_user_nothing_of_roots(guest: Guest, home: Path) -> None:
    """The guest is root; a link of the user's must not make it read or write for the user (security.md 4, item 24)."""
    private = guest.home.parent / "root-only"
    private.mkdir(exist_ok=True)
    (private / "secret").write_text("root's")
    private.chmod(0o700)
    own = home / "own"
    own.mkdir()
    (own / "secret").write_text("the user's")
    os.chown(own, NOBODY, NOBODY)
    for name, target in (("evil", private), ("good", own)):
        (home / name).symlink_to(target)
        (home / f"{name}-file").symlink_to(target / "secret")
    for path in ("evil/secret", "evil-file", "/proc/1/root/etc/shadow", "/proc/self/root/etc/shadow"):
        assert code(get(guest, home / path)) == "permission_denied", path
        assert code(put(guest, home / path, b"!")) in ("permission_denied", "not_found"), path
    assert get(guest, home / "good/secret").text == get(guest, home / "good-file").text == "the user's"
    assert code(guest.http.get(url("list", home / "evil"))) == "permission_denied"
    assert guest.http.get(url("list", home / "good")).json()["items"][0]["name"] == "secret"
    assert code(post(guest, "remove", home / "evil/secret")) == "permission_denied"
    assert post(guest, "remove", home / "good/secret").json() == {"removed": 1}
    assert (private / "secret").read_text() == "root's"


def test_recursive_work_does_not_follow_links(guest: Guest, home: Path) -> None:
    outside = home / "outside"
    outside.mkdir()
    (outside / "keep").write_text("keep")
    os.chown(outside, NOBODY, NOBODY)
    tree = home / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub/file").write_text("x")
    (tree / "link").symlink_to(outside)
    for path in (tree, tree / "sub", tree / "sub/file"):
        os.chown(path, NOBODY, NOBODY)
    names = [item["path"] for item in guest.http.get(url("list", tree, depth=9)).json()["items"]]
    assert names == [f"{tree}/{name}" for name in ("link", "sub", "sub/file")]
    assert post(guest, "copy", tree, destination=str(home / "copy"), recursive=True).status_code == 201
    assert (home / "copy/link").is_symlink()
    assert post(guest, "chmod", tree, mode="700", recursive=True).is_success
    assert outside.stat().st_mode & 0o777 == 0o755
    assert post(guest, "remove", tree, recursive=True).json() == {"removed": 4}
    assert (outside / "keep").exists()


def test_a_link_swapped_in_while_removing_leads_nowhere(guest: Guest, home: Path) -> None:
    """security.md 4, item 25."""
    outside = home / "outside"
    outside.mkdir()
    for n in range(50):
        (outside / str(n)).write_text("keep")
    subprocess.run(["chown", "-R", "nobody", str(outside)], check=True)
    stop = threading.Event()
    spot, link = home / "tree/spot", home / "tree/link"

    def swap() -> None:
        while not stop.is_set():
            try:
                os.rename(spot, home / "aside")
                os.symlink(outside, spot)
                os.unlink(spot)
                os.rename(home / "aside", spot)
            except OSError:
                continue

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(60):
            with contextlib.suppress(FileExistsError):
                spot.mkdir(parents=True)
            for n in range(20):
                (home / "tree" / f"f{n}").write_text("x")
            subprocess.run(["chown", "-R", "nobody", str(home / "tree")], check=False, capture_output=True)
            post(guest, "remove", home / "tree", recursive=True, missing_ok=True)
    finally:
        stop.set()
        thread.join()
    assert not link.exists()
    assert len(list(outside.iterdir())) == 50


# Names

ODD = [
    b"new\nline",
    b"a|b",
    b"caf\xe9",
    "ünï".encode(),
    b"%2e%2e",
    b"back\\slash",
    b"quo\"te'",
    b" ",
    b"-rf",
    b"\x01\x7f",
    b"\xff\xfe",
]


@pytest.mark.parametrize("name", ODD)
def test_every_name_goes_through_everything(guest: Guest, home: Path, name: bytes) -> None:
    """cloudflare/sandbox-sdk: a vertical bar cuts names, a newline breaks parsing (behaviour.md 2.5)."""
    path = os.fsencode(home) + b"/" + name
    assert put(guest, path, b"1").status_code == 201
    assert os.listdir(os.fsencode(home)) == [name]
    assert get(guest, path).content == b"1"
    (item,) = guest.http.get(url("list", home)).json()["items"]
    assert os.fsencode(from_text(item["name"])) == name
    (match,) = guest.http.get(url("glob", home, pattern="*")).json()["paths"]
    assert os.fsencode(from_text(match)) == name
    found = post(guest, "search", home, pattern="1").json()["matches"]
    assert [os.fsencode(from_text(hit["path"])) for hit in found] == [name]
    target = to_text(os.fsdecode(path + b"2"))
    assert post(guest, "move", os.fsdecode(path), destination=target).is_success
    assert guest.http.get(url("stat", path + b"2")).json()["path"] == target
    assert post(guest, "remove", os.fsdecode(path + b"2")).is_success


def test_texts_that_are_no_names(guest: Guest) -> None:
    for text in ("a\x00b", "\x00c3\x00a9", "\x0041", "", "x" * 5000, "\x00zz"):
        response = guest.http.get("/v1/files/stat", params={"path": text})
        assert code(response) == "invalid_request", repr(text)


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


def worker_pid(guest: Guest) -> int:
    out = subprocess.run(["pgrep", "-P", str(guest.process.pid), "-f", "files.worker"], capture_output=True, check=True)
    return int(out.stdout.split()[0])


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
        subprocess.run(["umount", str(disk)], check=True)


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


# Streams


def blocks(total: int) -> Iterator[bytes]:
    block = os.urandom(1024 * 1024)
    for n in range(total // len(block)):
        yield n.to_bytes(8, "big") + block[8:]


def test_large_files_take_no_memory(guest: Guest, home: Path) -> None:
    """LibreChat and others: whole files in memory. 64 MiB here, 2 GiB in `bench files --large`."""
    size = 64 * 1024 * 1024
    sent, received = hashlib.sha256(), hashlib.sha256()

    def body() -> Iterator[bytes]:
        for block in blocks(size):
            sent.update(block)
            yield block

    before = guest.health()["memory_bytes"]
    Path(f"/proc/{worker_pid(guest)}/clear_refs").write_text("5")  # forget the peak of other tests
    assert put(guest, home / "big", body()).json()["size"] == size
    with guest.http.stream("GET", url("content", home / "big")) as answer:
        assert answer.headers["Content-Length"] == str(size)
        for part in answer.iter_bytes():
            received.update(part)
    assert received.digest() == sent.digest()
    assert guest.health()["memory_bytes"] - before < 16 * 1024 * 1024
    status = Path(f"/proc/{worker_pid(guest)}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 48 * 1024, "KiB, of the worker"


def test_a_refused_upload_is_answered_early(guest: Guest) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(4096):
            yield b"x" * 65536

    answer = put(guest, "/etc/nope", endless())
    assert code(answer) == "permission_denied"


def test_an_upload_that_is_cut_changes_nothing(guest: Guest, home: Path) -> None:
    put(guest, home / "f", b"old")
    with socket.create_connection(("127.0.0.1", guest.port)) as connection:
        head = f"PUT {url('content', home / 'f')} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        connection.sendall(head.encode() + b"new" * 1000)
        wait_for(lambda: len(list(home.iterdir())) == 2, "the temporary file")
    wait_for(lambda: [entry.name for entry in home.iterdir()] == ["f"], "the temporary file to go")
    assert (home / "f").read_bytes() == b"old"


def test_a_killed_worker_costs_its_operations_and_nothing_else(guest: Guest, home: Path) -> None:
    put(guest, home / "f", b"1")
    os.kill(worker_pid(guest), 9)
    answers = [get(guest, home / "f") for _ in range(2)]
    assert answers[-1].content == b"1"
    assert answers[0].is_success or code(answers[0]) == "file_failed"


def test_operations_have_a_limit(guest: Guest, home: Path) -> None:
    held = []
    try:
        for _ in range(64):
            connection = socket.create_connection(("127.0.0.1", guest.port))
            held.append(connection)
            head = f"PUT {url('content', home / 'f')} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx"
            connection.sendall(head.encode())
        wait_for(lambda: len(list(home.iterdir())) == 64, "all of them")
        answer = guest.http.get(url("stat", home))
        assert (code(answer), answer.json()["details"]["limit"]) == ("limit_reached", 64)
    finally:
        for connection in held:
            connection.close()
    wait_for(lambda: guest.http.get(url("stat", home)).is_success, "room")


# Trees


def tar_of(*members: tuple[str, bytes | None, dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data, facts in members:
            info = tarfile.TarInfo(name)
            for key, value in facts.items():
                setattr(info, key, value)
            info.size = len(data or b"")
            archive.addfile(info, io.BytesIO(data) if data is not None else None)
    return out.getvalue()


def upload(guest: Guest, path: Path, archive: bytes, **query: Any) -> httpx.Response:
    return guest.http.put(url("tree", path, **query), content=archive)


def test_a_tree_goes_out_and_in_again(guest: Guest, home: Path) -> None:
    tree = home / "tree"
    (tree / "sub" / ("long" * 50)).mkdir(parents=True)
    (tree / "sub" / ("long" * 50) / ("name" * 50)).write_bytes(os.urandom(100_000))
    (tree / "run.sh").write_text("#!/bin/sh")
    (tree / "run.sh").chmod(0o755)
    (tree / "abs").symlink_to("/usr/bin/python3")
    (Path(os.fsdecode(os.fsencode(tree) + b"/caf\xe9"))).write_text("latin")
    (tree / "empty").mkdir()
    (tree / "closed").mkdir(mode=0o555)
    archive = guest.http.get(url("tree", tree))
    assert archive.headers["Content-Type"] == "application/x-tar"
    stored = upload(guest, home / "back/deep", archive.content, parents="true").json()
    assert (stored["files"], stored["links"]) == (3, 1)
    assert (
        subprocess.run(["diff", "-r", "--no-dereference", str(tree), str(home / "back/deep")], check=False).returncode
        == 0
    )
    assert (home / "back/deep/closed").stat().st_mode & 0o777 == 0o555
    assert (home / "back/deep/run.sh").stat().st_mode & 0o777 == 0o755
    assert (home / "back/deep/run.sh").stat().st_uid == NOBODY
    listed = subprocess.run(["tar", "-tf", "-"], input=archive.content, capture_output=True, check=True).stdout
    assert len(listed.splitlines()) == 9


@pytest.mark.parametrize("name", ["/etc/cron.d/x", "../x", "a/../../x", "a/../b"])
def test_members_that_climb_out_are_refused(guest: Guest, home: Path, name: str) -> None:
    answer = upload(guest, home / "t", tar_of((name, b"x", {})))
    assert (answer.status_code, code(answer)) == (400, "bad_archive")
    assert answer.json()["details"]["member"] == name
    assert upload(guest, home / "t", tar_of(("./a/./b", b"x", {}))).is_success
    assert (home / "t/a/b").read_bytes() == b"x"


def test_links_in_an_archive_lead_no_member_anywhere(guest: Guest, home: Path) -> None:
    """CVE-2025-4517 and its family: a link member, then a member through it (security.md 4, item 28)."""
    outside = home / "outside"
    outside.mkdir()
    os.chown(outside, NOBODY, NOBODY)
    (outside / "f").write_text("old")
    os.chown(outside / "f", NOBODY, NOBODY)
    link = {"type": tarfile.SYMTYPE, "linkname": str(outside)}
    hard = {"type": tarfile.LNKTYPE}
    attacks = [
        [("l", None, link), ("l/new", b"x", {})],
        [("l", None, link), ("l", None, {"type": tarfile.DIRTYPE}), ("l/new", b"x", {})],
        [("l", None, {**link, "linkname": str(outside / "f")}), ("h", None, {**hard, "linkname": "l"})],
        [("h", None, {**hard, "linkname": str(outside / "f")})],
        [("h", None, {**hard, "linkname": "../outside/f"})],
        [("l", None, link), ("h", None, {**hard, "linkname": "l/f"})],
    ]
    for members in attacks:
        assert code(upload(guest, home / "t", tar_of(*members))) == "bad_archive", members
    replaced = upload(
        guest, home / "t", tar_of(("l", None, {**link, "linkname": str(outside / "f")}), ("l", b"new", {}))
    )
    assert replaced.is_success, "a file takes the place of a link, and does not go through it"
    assert (outside / "f").read_text() == "old"
    assert [entry.name for entry in outside.iterdir()] == ["f"]
    good = tar_of(("a", b"1", {}), ("h", None, {**hard, "linkname": "a"}), ("s", None, {**link, "linkname": "a"}))
    assert upload(guest, home / "good", good).is_success
    assert (home / "good/h").read_bytes() == (home / "good/s").read_bytes() == b"1"


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_devices_and_fifos_are_refused(guest: Guest, home: Path, kind: bytes) -> None:
    assert code(upload(guest, home / "t", tar_of(("x", None, {"type": kind})))) == "bad_archive"
    assert not (home / "t/x").exists()


def test_setuid_does_not_come_in(guest: Guest, home: Path) -> None:
    upload(guest, home / "t", tar_of(("x", b"", {"mode": 0o6755})))
    assert (home / "t/x").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("data", [b"", b"x" * 512, b"\x1f\x8b" + b"0" * 1000, tar_of(("a", b"x" * 5000, {}))[:2000]])
def test_what_is_no_tar_stream_is_said(guest: Guest, home: Path, data: bytes) -> None:
    assert code(upload(guest, home / "t", data)) == "bad_archive"


def test_headers_without_end_are_refused(guest: Guest, home: Path) -> None:
    """A pax header may say that it has gigabytes."""
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 2**33
    assert code(upload(guest, home / "t", info.tobuf(tarfile.GNU_FORMAT) + b"0" * 100_000)) == "bad_archive"


# git


@pytest.fixture(scope="module")
def repository(guest: Guest) -> Path:
    path = guest.home.parent / "repository"
    script = """
    git init -q -b main . && git config user.email a@b && git config user.name n
    for n in 1 2 3; do echo $n > f$n && git add . && git commit -qm $n; done
    git branch other HEAD~1
    """
    path.mkdir()
    subprocess.run(["bash", "-ec", script], cwd=path, check=True)
    subprocess.run(["chown", "-R", "nobody", str(path)], check=True)
    return path


def test_clone(guest: Guest, home: Path, repository: Path) -> None:
    done = post(guest, "clone", home / "a", url=f"file://{repository}", depth=1).json()
    assert done["branch"] == "main"
    assert done["path"] == str(home / "a")
    commits = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", str(home / "a"), "log", "--oneline"], capture_output=True, check=True
    )
    assert len(commits.stdout.splitlines()) == 1
    assert post(guest, "clone", home / "b", url=str(repository), branch="other").json()["branch"] == "other"
    assert not (home / "b/f3").exists()


def test_clone_as_events(guest: Guest, home: Path, repository: Path) -> None:
    body = {"path": str(home / "a"), "url": f"file://{repository}"}
    with guest.http.stream("POST", "/v1/files/clone", json=body, headers={"Accept": "text/event-stream"}) as answer:
        events = list(parse_sse(answer.iter_lines()))
    assert events[-1]["type"] == "finished"
    assert events[-1]["data"]["branch"] == "main"
    progress = [event["data"] for event in events if event["type"] == "progress"]
    assert {"phase", "percent", "done", "total"} == set(progress[0])
    assert progress[-1]["percent"] == 100


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ("file:///nowhere/at/all", {}, "not_found"),
        ("https://no-such-host.invalid/x.git", {}, "network"),
        ("http://127.0.0.1:1/x.git", {}, "network"),
        ("REPOSITORY", {"branch": "none"}, "branch_not_found"),
        ("ext::sh -c id", {}, "other"),
    ],
)
def test_clone_says_why_it_failed(
    guest: Guest, home: Path, repository: Path, source: str, options: Json, reason: str
) -> None:
    answer = post(guest, "clone", home / "a", url=source.replace("REPOSITORY", str(repository)), **options)
    assert (answer.status_code, code(answer)) == (409, "git_failed")
    assert answer.json()["details"]["reason"] == reason, answer.text
    assert not (home / "a").exists()


def test_clone_into_something(guest: Guest, home: Path, repository: Path) -> None:
    (home / "full").mkdir()
    (home / "full/x").write_text("")
    assert code(post(guest, "clone", home / "full", url=str(repository))) == "already_exists"
    (home / "empty").mkdir()
    os.chown(home / "empty", NOBODY, NOBODY)
    assert post(guest, "clone", home / "empty", url=str(repository)).is_success


def test_a_clone_ends_with_its_time_and_with_its_client(guest: Guest, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = f"git://127.0.0.1:{silent.getsockname()[1]}/x"
        answer = post(guest, "clone", home / "a", url=source, timeout_s=1)
        assert answer.json()["details"]["reason"] == "timeout"
        with pytest.raises(httpx.ReadTimeout):
            guest.http.post(
                "/v1/files/clone", json={"path": str(home / "b"), "url": source}, timeout=httpx.Timeout(30, read=0.5)
            )
        wait_for(lambda: not (home / "b").exists(), "git to end")


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
