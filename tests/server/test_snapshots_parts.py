"""Snapshots without a server: digests, directories, archives, trees, retention, differences."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.errors import InvalidRequest, SnapshotBroken
from cloche.models import Resources
from cloche.models.guest import VariableSummary
from cloche.tar_stream import END, Member, encode_header, padding
from cloche_server.ids import new_snapshot_id
from cloche_server.snapshots._archive import Unarchiver, archive
from cloche_server.snapshots._differences import compare_files, compare_variables
from cloche_server.snapshots._digest import CHUNK, digest_of_file, extents_of
from cloche_server.snapshots._files import SnapshotFiles
from cloche_server.snapshots._manifest import Manifest, content_digest, is_signed, manifest_of, read_manifest, sign
from cloche_server.snapshots._retention import replaced, series_of
from cloche_server.snapshots._tree import tree_of
from cloche_server.state import SavedFile, SnapshotRow

KEY = b"k" * 32


def row(**changes: object) -> SnapshotRow:
    made = SnapshotRow(
        id=new_snapshot_id(),
        owner="ann",
        name=None,
        state="ready",
        sandbox_id="a" * 20,
        parent=None,
        memory=True,
        driver="gvisor",
        image="python",
        image_digest="sha256:" + "0" * 64,
        resources=Resources(),
        sudo=True,
        env={"TOKEN": "secret"},
        labels={},
        identity={"sandbox_id": "a" * 20, "epoch": "e1", "session_hash": "0" * 64},
        created_us=1,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def sparse(path: Path, size: int, *pieces: tuple[int, bytes]) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
        for offset, data in pieces:
            file.seek(offset)
            file.write(data)
    return path


# Digests


def test_the_digest_does_not_see_how_a_file_lies_on_the_disk(tmp_path: Path) -> None:
    holes = sparse(tmp_path / "holes", 5 * CHUNK + 7, (3 * CHUNK + 5, b"x"))
    full = tmp_path / "full"
    full.write_bytes(holes.read_bytes())
    assert holes.stat().st_blocks < full.stat().st_blocks
    assert digest_of_file(holes) == digest_of_file(full)


@pytest.mark.parametrize(
    "other",
    [(5 * CHUNK, (3, b"y")), (5 * CHUNK, (CHUNK + 3, b"x")), (5 * CHUNK + 1, (3, b"x")), (5 * CHUNK, (4, b"x"))],
    ids=["another byte", "another chunk", "longer by a zero", "another place"],
)
def test_the_digest_sees_every_change(tmp_path: Path, other: tuple[int, tuple[int, bytes]]) -> None:
    first = sparse(tmp_path / "first", 5 * CHUNK, (3, b"x"))
    assert digest_of_file(first) != digest_of_file(sparse(tmp_path / "second", other[0], other[1]))


def test_extents_cover_the_content_and_pass_over_holes(tmp_path: Path) -> None:
    path = sparse(tmp_path / "disk", 64 * CHUNK, (20 * CHUNK, b"a" * 10), (40 * CHUNK, b"b"))
    with path.open("rb") as file:
        extents = extents_of(file.fileno())
    assert any(start <= 20 * CHUNK < start + length for start, length in extents)
    assert any(start <= 40 * CHUNK < start + length for start, length in extents)
    assert sum(length for _, length in extents) < 4 * CHUNK


# Directories


def published(files: SnapshotFiles, snapshot_id: str, **content: bytes) -> list[SavedFile]:
    directory = files.unfinished(snapshot_id)
    directory.mkdir(mode=0o700)
    for name, data in content.items():
        (directory / name).write_bytes(data)
    measured = files.measure(directory, sorted(content))
    files.publish(snapshot_id, manifest_of(row(), measured))
    return measured


@pytest.fixture
def files(tmp_path: Path) -> SnapshotFiles:
    made = SnapshotFiles(tmp_path / "snapshots")
    made.prepare()
    return made


def test_a_published_directory_is_whole_and_private(files: SnapshotFiles) -> None:
    snapshot_id = new_snapshot_id()
    measured = published(files, snapshot_id, pages=b"p" * 100)
    assert files.names() == [snapshot_id]
    assert stat.S_IMODE(files.root.stat().st_mode) == 0o700
    manifest = read_manifest((files.directory(snapshot_id) / "manifest.json").read_bytes())
    assert [(file.name, file.size, file.digest) for file in manifest.files] == [
        ("pages", 100, measured[0].digest),
    ]


def test_what_was_saved_is_good(files: SnapshotFiles) -> None:
    snapshot_id = new_snapshot_id()
    measured = published(files, snapshot_id, pages=b"p" * 100)
    files.verify(snapshot_id, measured)
    SnapshotFiles(files.root).verify(snapshot_id, measured)  # another server process, which has to read it


def test_what_was_changed_is_refused_by_its_name(files: SnapshotFiles) -> None:
    snapshot_id = new_snapshot_id()
    measured = published(files, snapshot_id, pages=b"p" * 100, meta=b"m")
    path = files.directory(snapshot_id) / "pages"
    path.write_bytes(b"p" * 99 + b"q")
    for view in (files, SnapshotFiles(files.root)):
        with pytest.raises(SnapshotBroken) as caught:
            view.verify(snapshot_id, measured)
        assert caught.value.details["file"] == "pages"
    path.unlink()
    with pytest.raises(SnapshotBroken):
        files.verify(snapshot_id, measured)


def test_a_file_is_read_once_as_long_as_it_stays_the_same(
    files: SnapshotFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """superradcompany/microsandbox#1220: every use hashed everything again, and snapshots were slow."""
    snapshot_id = new_snapshot_id()
    measured = published(files, snapshot_id, pages=b"p" * 100)
    read: list[Path] = []

    def counted(path: Path) -> str:
        read.append(path)
        return digest_of_file(path)

    monkeypatch.setattr("cloche_server.snapshots._files.digest_of_file", counted)
    again = SnapshotFiles(files.root)
    again.verify(snapshot_id, measured)
    again.verify(snapshot_id, measured)
    assert len(read) == 1
    os.utime(files.directory(snapshot_id) / "pages", ns=(1, 1))
    again.verify(snapshot_id, measured)
    assert len(read) == 2


def test_removing_leaves_nothing_whole_or_unfinished(files: SnapshotFiles) -> None:
    whole, half = new_snapshot_id(), new_snapshot_id()
    published(files, whole, pages=b"p")
    files.unfinished(half).mkdir()
    files.remove(whole)
    files.remove(half)
    files.remove(new_snapshot_id())
    assert files.names() == []


# Archives


def manifest_with(directory: Path, files: SnapshotFiles) -> Manifest:
    return manifest_of(row(), files.measure(directory, sorted(path.name for path in directory.iterdir())))


def fed(directory: Path, stream: bytes, step: int = 1000) -> Manifest:
    directory.mkdir()
    unarchiver = Unarchiver(directory)
    try:
        for start in range(0, len(stream), step):
            unarchiver.feed(stream[start : start + step])
        return unarchiver.finish()
    finally:
        unarchiver.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    sparse(directory / "disk.img", 8 * CHUNK, (3 * CHUNK + 17, b"content" * 1000))
    (directory / "pages.img").write_bytes(os.urandom(300_001))
    (directory / "empty").write_bytes(b"")
    return directory


@pytest.mark.parametrize("step", [511, 65_536, 10**9])
def test_an_archive_gives_the_same_files_back(tmp_path: Path, source: Path, files: SnapshotFiles, step: int) -> None:
    manifest = manifest_with(source, files)
    stream = b"".join(archive(manifest, source, KEY))
    assert len(stream) < 2 * CHUNK, "holes are not carried"
    found = fed(tmp_path / "target", stream, step)
    assert is_signed(found, KEY)
    assert not is_signed(found, b"another")
    for file in manifest.files:
        assert digest_of_file(tmp_path / "target" / file.name) == file.digest
        assert (tmp_path / "target" / file.name).read_bytes() == (source / file.name).read_bytes()


def member(name: str, data: bytes = b"") -> bytes:
    return encode_header(Member(name, "file", len(data))) + data + padding(len(data))


def head(manifest: Manifest, **changes: object) -> bytes:
    return member("manifest.json", manifest.model_copy(update=changes).model_dump_json().encode())


def test_archives_of_strangers_are_refused(tmp_path: Path, source: Path, files: SnapshotFiles) -> None:
    manifest = manifest_with(source, files)
    whole = b"".join(archive(manifest, source, KEY))
    traversal = manifest.model_dump_json().replace("pages.img", "../pages.img").encode()
    bad = {
        "nothing": b"",
        "noise": b"x" * 1024,
        "no manifest": member("pages.img", b"x") + END,
        "a manifest of another format": head(manifest, format=2) + END,
        "a path for a name": member("manifest.json", traversal) + END,
        "another name than the next": head(manifest) + member("../../evil", b"x") + END,
        "a link": head(manifest) + encode_header(Member("disk.img", "symlink", link="/etc/passwd")) + END,
        "a size that is not the manifest's": head(manifest) + member("disk.img", b"x") + END,
        "half": whole[: len(whole) // 2],
        "no end": whole[:-1024],
        "more than there should be": whole[:-1024] + member("more", b"x") + END,
        "extents behind the end": head(manifest, files=[manifest.files[0].model_copy(update={"extents": [(2**40, 5)]})])
        + END,
    }
    for index, stream in enumerate(bad.values()):
        with pytest.raises(InvalidRequest):
            fed(tmp_path / f"{index}", stream)
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.isdigit()) == ["snapshots", "source"]


def test_a_signature_covers_everything(source: Path, files: SnapshotFiles) -> None:
    signed = sign(manifest_with(source, files), KEY)
    assert is_signed(signed, KEY)
    assert not is_signed(signed.model_copy(update={"sudo": False}), KEY)
    assert not is_signed(signed.model_copy(update={"files": signed.files[1:]}), KEY)


def test_the_content_digest_knows_names_and_digests() -> None:
    one = [SavedFile("a", 1, "0" * 64), SavedFile("b", 2, "1" * 64)]
    assert content_digest(one) == content_digest(one[::-1])
    assert content_digest(one) != content_digest([SavedFile("a", 1, "1" * 64), SavedFile("b", 2, "0" * 64)])


# The tree


def test_children_of_a_deleted_snapshot_move_up_to_its_nearest_ancestor() -> None:
    root = row(created_us=1)
    gone, gone_too = row(parent=root.id, created_us=2), row(created_us=3)
    gone_too = replace(gone_too, parent=gone.id)
    child = row(parent=gone_too.id, created_us=4)
    orphan = row(parent=new_snapshot_id(), created_us=5)
    parents = {one.id: one.parent for one in (root, gone, gone_too, child, orphan)}
    nodes = tree_of([orphan, child, root], parents).nodes
    assert [(node.snapshot.id, node.parent, node.depth) for node in nodes] == [
        (root.id, None, 0),
        (child.id, root.id, 1),
        (orphan.id, None, 0),
    ]


@given(st.lists(st.integers(min_value=0), min_size=1, max_size=60), st.sets(st.integers(0, 59)))
def test_every_snapshot_is_once_in_the_tree_behind_its_parent(choices: list[int], deleted: set[int]) -> None:
    rows: list[SnapshotRow] = []
    for index, choice in enumerate(choices):
        parent = None if choice % (index + 1) == index else rows[choice % (index + 1)].id
        rows.append(row(parent=parent, created_us=index))
    present = [one for index, one in enumerate(rows) if index not in deleted]
    nodes = tree_of(present, {one.id: one.parent for one in rows}).nodes
    assert sorted(node.snapshot.id for node in nodes) == sorted(one.id for one in present)
    depths: dict[str | None, int] = {None: -1}
    for node in nodes:
        assert node.depth == depths[node.parent] + 1
        depths[node.snapshot.id] = node.depth


def test_a_thousand_levels_are_a_list() -> None:
    rows = [row(created_us=0)]
    for index in range(1000):
        rows.append(row(parent=rows[-1].id, created_us=index + 1))
    tree = tree_of(rows, {one.id: one.parent for one in rows})
    assert tree.nodes[-1].depth == 1000
    assert len(tree.model_dump_json()) > 1000


# Retention


def test_a_series_is_a_name_without_its_number_or_date() -> None:
    names = ["nightly", "nightly-2", "nightly-2026-01-31", "nightly_3.1"]
    assert {series_of(name) for name in names} == {"nightly"}
    assert series_of("nightly-2b") == "nightly-2b"
    assert series_of(None) is None


def test_older_ones_of_the_series_are_replaced_and_nothing_else() -> None:
    old, older = row(name="n-2", created_us=2), row(name="n-1", created_us=1)
    others = [
        row(name="m-1"),
        row(name=None),
        row(name="n-0", sandbox_id="b" * 20),
        row(name="n-x", template="t@1"),
        row(name="n-00", template="t@1"),
        row(name="n-000", state="creating"),
    ]
    newest = row(name="n-3", created_us=3)
    everything = [newest, old, older, *others]
    assert replaced(everything, newest, 1) == [old, older]
    assert replaced(everything, newest, 2) == [older]
    assert replaced(everything, newest, 3) == []


# Differences


def test_files_are_added_changed_and_removed() -> None:
    before = {"same": "1", "changed": "1", "removed": "-> x"}
    after = {"same": "1", "changed": "2", "added": "directory"}
    found = [(one.path, one.change, one.before, one.after) for one in compare_files(before, after)]
    assert found == [
        ("added", "added", None, "directory"),
        ("changed", "changed", "1", "2"),
        ("removed", "removed", "-> x", None),
    ]


def test_variables_differ_by_their_digest_else_by_what_is_shown() -> None:
    def summary(name: str, text: str, digest: str | None, kind: str = "int", size: int = 1) -> VariableSummary:
        return VariableSummary(name=name, type=kind, summary=text, size_bytes=size, digest=digest)

    before = [summary("a", "x", "1"), summary("b", "x", "1"), summary("c", "x", None), summary("d", "x", None)]
    after = [
        summary("a", "x", "1", size=2),
        summary("b", "x", "2"),
        summary("c", "x", None, size=2),
        summary("d", "x", None, kind="float"),
        summary("e", "new", "1"),
    ]
    found = list(compare_variables("default", before, after))
    assert [(one.name, one.change) for one in found] == [("b", "changed"), ("d", "changed"), ("e", "added")]
