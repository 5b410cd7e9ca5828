"""Content of files: ranges, conditions, refusals, streams of any size.

Every refusal has a twin that is allowed: a broken probe must not look like security.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from file_calls import NOBODY, code, get, post, put, unmount, url, worker_pid
from guest_process import Guest, is_running, wait_for

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
            with httpx.Client(base_url=guest.http.base_url, timeout=60) as http:
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
        unmount(disk)


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

    put(guest, home / "small", b"")  # there is a worker
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
    worker = worker_pid(guest)
    os.kill(worker, 9)
    wait_for(lambda: not is_running(worker), "its end")  # that the guest has noticed cannot be seen from here
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
