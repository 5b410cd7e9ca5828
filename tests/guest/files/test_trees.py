"""Trees as tar streams, out and in.

Every refusal has a twin that is allowed: a broken probe must not look like security.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from file_calls import NOBODY, code, url
from guest_process import Guest


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
