"""The content digest: what changes it and what does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cloche_server.images.digest import summarise_tree


def make_tree(root: Path) -> Path:
    (root / "d").mkdir(parents=True)
    (root / "d/file").write_text("content")
    (root / "link").symlink_to("d/file")
    (root / "d").chmod(0o755)
    (root / "d/file").chmod(0o644)
    return root


def test_equal_trees_have_equal_digests_whatever_their_times(tmp_path: Path) -> None:
    one, other = make_tree(tmp_path / "one"), make_tree(tmp_path / "other")
    os.utime(other / "d/file", (1, 1))
    assert summarise_tree(one) == summarise_tree(other)


def test_the_summary_counts_entries_and_bytes(tmp_path: Path) -> None:
    summary = summarise_tree(make_tree(tmp_path / "tree"))
    assert (summary.entries, summary.size_bytes) == (3, len("content"))
    assert summary.digest.startswith("sha256:")


def relink(link: Path, target: str) -> None:
    link.unlink()
    link.symlink_to(target)


def replace_by_file(link: Path) -> None:
    text = os.readlink(link)
    link.unlink()
    link.write_text(text)


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda root: (root / "d/file").write_text("CONTENT"),
    "mode": lambda root: (root / "d/file").chmod(0o755),
    "setuid": lambda root: (root / "d/file").chmod(0o4644),
    "owner": lambda root: os.chown(root / "d/file", 1000, 0),
    "group": lambda root: os.chown(root / "d", 0, 1000),
    "name": lambda root: (root / "d/file").rename(root / "d/renamed"),
    "link target": lambda root: relink(root / "link", "d"),
    "kind": lambda root: replace_by_file(root / "link"),
    "attribute": lambda root: os.setxattr(root / "d/file", "user.note", b"x"),
    "empty directory": lambda root: (root / "d/empty").mkdir(),
    "device": lambda root: os.mknod(root / "null", 0o20666, os.makedev(1, 3)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_that_a_program_could_see_changes_the_digest(tmp_path: Path, change: str) -> None:
    root = make_tree(tmp_path / "tree")
    before = summarise_tree(root).digest
    CHANGES[change](root)
    assert summarise_tree(root).digest != before
