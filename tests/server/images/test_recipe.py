"""What an image directory is made of, and when that changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloche.errors import InvalidRequest
from cloche_server.images import BadRecipe
from cloche_server.images.recipe import DEBIAN_TAG, read_recipe, stage

from .conftest import MakeDirectory


def test_a_parent_is_the_image_directory_beside_it(make_directory: MakeDirectory) -> None:
    recipe = read_recipe("tiny", make_directory("tiny", "FROM localhost/cloche/base\n"))
    assert recipe.parent is not None
    assert (recipe.parent.name, recipe.parent.base, recipe.on_debian) == ("base", "debian:12-slim", True)


def test_stages_are_followed_to_what_the_last_one_stands_on(make_directory: MakeDirectory) -> None:
    text = "FROM alpine AS tools\nFROM --platform=linux/amd64 Debian:13 AS lower\nfrom LOWER\nCOPY --from=tools /x /x\n"
    recipe = read_recipe("tiny", make_directory("tiny", text))
    assert (recipe.base, recipe.parent, recipe.on_debian) == ("Debian:13", None, False)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("RUN x\n", "no FROM line"),
        ("FROM localhost/cloche/absent\n", "no directory"),
        ("FROM localhost/cloche/tiny", "circle"),
    ],
)
def test_a_directory_that_cannot_be_built_says_why(make_directory: MakeDirectory, text: str, complaint: str) -> None:
    directory = make_directory("tiny", text)
    with pytest.raises(BadRecipe, match=complaint):
        read_recipe("tiny", directory)


def test_a_directory_without_a_dockerfile_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRecipe, match="no readable Dockerfile"):
        read_recipe("tiny", tmp_path)


def test_a_bad_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        read_recipe("Not A Name", tmp_path)


def test_inputs_change_with_files_modes_and_parents_and_with_nothing_else(make_directory: MakeDirectory) -> None:
    directory = make_directory("tiny", "FROM localhost/cloche/lower\n", data="1")
    lower = make_directory("lower", "FROM scratch\n", data="1")

    def inputs() -> str:
        return read_recipe("tiny", directory).inputs

    seen = [inputs()]
    (directory / "data").touch()
    assert inputs() == seen[0]
    for change in (
        lambda: (directory / "data").write_text("2"),
        lambda: (directory / "data").chmod(0o755),
        lambda: (directory / "Dockerfile").write_text("FROM localhost/cloche/lower\nENV A=1\n"),
        lambda: (lower / "data").write_text("2"),
        lambda: (directory / "link").symlink_to("data"),
    ):
        change()
        seen.append(inputs())
    assert len(set(seen)) == len(seen)


def test_a_dockerfile_that_copies_the_guest_gets_it_into_its_context(
    make_directory: MakeDirectory, tmp_path: Path
) -> None:
    recipe = read_recipe("tiny", make_directory("tiny", "FROM scratch\nCOPY cloche/packages/ /packages/\n"))
    stage(recipe, tmp_path / "context", own_debian=False)
    for path in ("cloche/guest.txt", "cloche/packages/cloche/errors.py", "cloche/packages/cloche_guest/__init__.py"):
        assert (tmp_path / "context" / path).is_file()
    assert not list((tmp_path / "context").rglob("__pycache__"))


def test_a_directory_of_that_name_is_in_the_guests_way(make_directory: MakeDirectory) -> None:
    directory = make_directory("tiny", "FROM scratch\nCOPY cloche/packages/ /packages/\n")
    (directory / "cloche").mkdir()
    with pytest.raises(BadRecipe, match="in the way"):
        read_recipe("tiny", directory)


def test_only_debian_12_is_replaced_by_the_base_made_here(make_directory: MakeDirectory, tmp_path: Path) -> None:
    text = "FROM alpine AS a\nFROM debian:12-slim AS b\nFROM debian:bookworm\nRUN echo debian:12-slim\n"
    stage(read_recipe("tiny", make_directory("tiny", text)), tmp_path / "context", own_debian=True)
    expected = f"FROM alpine AS a\nFROM {DEBIAN_TAG} AS b\nFROM {DEBIAN_TAG}\nRUN echo debian:12-slim\n"
    assert (tmp_path / "context/Dockerfile").read_text() == expected
