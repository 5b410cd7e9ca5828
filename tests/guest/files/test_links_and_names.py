"""Links that lead elsewhere, and every name there can be.

Every refusal has a twin that is allowed: a broken probe must not look like security.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from pathlib import Path

import pytest
from file_calls import NOBODY, code, get, post, put, url
from guest_process import Guest

from cloche.path_text import from_text, to_text

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
