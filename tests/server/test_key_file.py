"""The files with the keys that links and archives are signed with."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloche_server.key_file import KEY_BYTES, load_key


def test_a_key_is_made_once_and_for_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "link.key"
    key = load_key(path)
    assert load_key(path) == key
    assert load_key(tmp_path / "other.key") != key
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("found", [b"", b"half", b"x" * (KEY_BYTES + 1)])
def test_one_that_was_not_written_whole_is_no_key(tmp_path: Path, found: bytes) -> None:
    """After a power failure a file may be empty, and an empty key signs for everybody."""
    path = tmp_path / "archive.key"
    path.write_bytes(found)
    key = load_key(path)
    assert len(key) == KEY_BYTES
    assert load_key(path) == key


def test_a_server_that_dies_before_it_has_its_name_leaves_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "archive.key"

    def fail(*_: object) -> None:
        raise OSError("killed here")

    with monkeypatch.context() as killed:
        killed.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="killed here"):
            load_key(path)
    assert not path.exists()
    assert len(load_key(path)) == KEY_BYTES
    assert [file.name for file in tmp_path.iterdir()] == ["archive.key"]
