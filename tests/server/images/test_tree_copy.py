"""Copies that share unchanged files with an earlier tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloche_server.images.digest import summarise_tree
from cloche_server.images.tree_copy import copy_tree


def silent(_line: str) -> None:
    return None


def make_source(root: Path) -> Path:
    (root / "d").mkdir(parents=True)
    for name in ("same", "changed", "touched"):
        (root / "d" / name).write_text(name)
    os.chown(root / "d/changed", 1000, 1000)
    (root / "d/changed").chmod(0o4755)
    os.setxattr(root / "d/same", "user.note", b"1")
    (root / "link").symlink_to("d/absent")
    os.mkfifo(root / "pipe")
    (root / "d").chmod(0o1777)
    return root


@pytest.mark.parametrize("with_earlier", [False, True])
def test_a_copy_has_the_content_digest_of_its_source(tmp_path: Path, with_earlier: bool) -> None:
    source, target, earlier = make_source(tmp_path / "source"), tmp_path / "target", tmp_path / "earlier"
    earlier.mkdir()
    copy_tree(source, earlier, silent, None)
    target.mkdir()
    copy_tree(source, target, silent, earlier if with_earlier else None)
    assert summarise_tree(target) == summarise_tree(source)


def test_only_files_that_are_equal_in_everything_are_shared(tmp_path: Path) -> None:
    source, earlier, target = make_source(tmp_path / "source"), tmp_path / "earlier", tmp_path / "target"
    earlier.mkdir()
    copy_tree(source, earlier, silent, None)
    (source / "d/changed").write_text("CHANGED")
    os.setxattr(source / "d/touched", "user.note", b"2")
    (source / "d/new").write_text("new")
    target.mkdir()
    copy_tree(source, target, silent, earlier)
    shared = {name for name in os.listdir(target / "d") if (target / "d" / name).stat().st_nlink > 1}
    assert shared == {"same"}
    assert (earlier / "d/changed").read_text() == "changed"
    assert summarise_tree(target) == summarise_tree(source)
