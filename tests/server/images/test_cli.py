"""``cloche image`` as a person and a program use it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cloche.cli._failures import SERVICE, USAGE, run_command
from cloche_server.images.cli import image
from cloche_server.images.store import ImageStore
from cloche_server.images.users import sandboxes_over

from .conftest import MakeDirectory


@pytest.fixture(autouse=True)
def _data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOCHE_DATA_DIR", str(tmp_path / "data"))


def call(*words: str) -> Result:
    return CliRunner().invoke(image, list(words), catch_exceptions=False)


def test_build_list_inspect_and_remove(make_directory: MakeDirectory) -> None:
    directory = make_directory("tiny", "FROM scratch\nCOPY data /data\n", data="1")
    built = json.loads(call("build", "tiny", str(directory), "--json").stdout)
    assert "tiny" in call("ls").stdout
    assert json.loads(call("ls", "--json").stdout) == [built]
    assert json.loads(call("inspect", "tiny").stdout) == built
    assert call("rm", "tiny").stdout == "removed tiny\n"
    assert "no images yet" in call("ls").stderr


def test_progress_goes_to_standard_error_with_the_time_since_the_start(make_directory: MakeDirectory) -> None:
    result = call("build", "tiny", str(make_directory("tiny", "FROM scratch\nCOPY data /data\n", data="1")))
    assert result.stdout.startswith("tiny sha256:")
    assert "s] building image tiny" in result.stderr


@pytest.mark.parametrize("words", [("inspect", "absent"), ("rm", "absent"), ("build", "absent")])
def test_errors_are_one_line_for_people(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(image, list(words)) in {USAGE, SERVICE}
    said = capsys.readouterr().err
    assert said.startswith("cloche: ")
    assert "Traceback" not in said


def test_prune_keeps_what_has_a_name(make_directory: MakeDirectory) -> None:
    for data in ("1", "2"):
        call("build", "tiny", str(make_directory("tiny", "FROM scratch\nCOPY data /data\n", data=data)))
    assert call("prune").stdout == "removed 1 image(s)\n"
    assert len(json.loads(call("ls", "--json").stdout)) == 1


def test_sandboxes_and_snapshots_in_the_database_count_as_users_until_they_are_deleted(store: ImageStore) -> None:
    users = sandboxes_over(store)
    assert users("sha256:a") == []
    store.root.parent.mkdir(parents=True)
    with closing(sqlite3.connect(store.root.parent / "cloche.db")) as database:
        assert users("sha256:a") == []
        database.execute("CREATE TABLE sandboxes (id, image_digest, state)")
        rows = [("s1", "sha256:a", "stopped"), ("s2", "sha256:a", "deleted"), ("s3", "sha256:b", "running")]
        database.executemany("INSERT INTO sandboxes VALUES (?, ?, ?)", rows)
        database.commit()
        assert users("sha256:a") == ["s1"]
        database.execute("CREATE TABLE snapshots (id, image_digest, state)")
        saved = [("snap-1", "sha256:a", "broken"), ("snap-2", "sha256:a", "deleted"), ("snap-3", "sha256:b", "ready")]
        database.executemany("INSERT INTO snapshots VALUES (?, ?, ?)", saved)
        database.commit()
        assert users("sha256:a") == ["s1", "snap-1"]


def test_a_mounted_tree_counts_as_used(store: ImageStore, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    tree = store.root / ("a" * 64) / "rootfs"
    mounts.write_text(f"50 30 0:40 / /run/x/root rw - overlay overlay rw,lowerdir={tree},upperdir=/u\n")
    users = sandboxes_over(store, mounts)
    assert users("sha256:" + "a" * 64) == ["/run/x/root"]
    assert users("sha256:" + "b" * 64) == []
