"""Names, digests and removal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cloche.errors import ClocheError, InvalidRequest
from cloche_server.images import ImageInUse, ImageNotFound, ImageStore

Adopt = Callable[[str, str], str]


def test_an_image_is_found_by_name_by_digest_and_by_its_first_digits(store: ImageStore, built_tree: Adopt) -> None:
    digest = built_tree("one", "1")
    for reference in ("one", digest, digest.removeprefix("sha256:"), digest.removeprefix("sha256:")[:8]):
        image = store.resolve(reference)
        assert image.digest == digest
        assert (image.rootfs / "file").read_text() == "1"
    assert (image.env, image.entrypoint) == ({"A": "1"}, ("/x",))


@pytest.mark.parametrize("reference", ["other", "", "../x", "sha256:", "sha256:" + "0" * 64, "a b", "names", "0" * 7])
def test_what_is_not_there_is_a_typed_error_that_names_what_is(
    store: ImageStore, built_tree: Adopt, reference: str
) -> None:
    built_tree("one", "1")
    with pytest.raises(ImageNotFound, match="there are: one") as caught:
        store.resolve(reference)
    assert caught.value.details["known"] == ["one"]


def test_an_empty_store_lists_nothing(store: ImageStore) -> None:
    assert list(store.list()) == []
    with pytest.raises(ImageNotFound, match="there are: none"):
        store.resolve("python")


def test_a_name_moves_to_the_new_image_and_the_old_one_is_listed_by_its_digest(
    store: ImageStore, built_tree: Adopt
) -> None:
    old, new = built_tree("one", "1"), built_tree("one", "2")
    assert store.resolve("one").digest == new
    assert [(image.name, image.digest) for image in store.list()] == [("one", new), (old[7:19], old)]


def test_the_same_content_under_two_names_is_one_tree(store: ImageStore, built_tree: Adopt) -> None:
    assert built_tree("one", "1") == built_tree("two", "1")
    assert store.remove("one") is False
    assert store.resolve("two").rootfs.is_dir()
    assert store.remove("two") is True
    assert list(store.list()) == []


def test_removal_by_digest_takes_all_names(store: ImageStore, built_tree: Adopt) -> None:
    digest = built_tree("one", "1")
    built_tree("two", "1")
    assert store.remove(digest) is True
    assert store.names() == {}


def test_an_image_in_use_stays(store: ImageStore, built_tree: Adopt) -> None:
    digest = built_tree("one", "1")
    with pytest.raises(ImageInUse, match="used by 1 sandbox") as caught:
        store.remove("one", lambda asked: ["sandbox7"] if asked == digest else [])
    assert caught.value.details["users"] == ["sandbox7"]
    assert store.resolve("one").rootfs.is_dir()


def test_pruning_removes_what_has_no_name_and_no_user(store: ImageStore, built_tree: Adopt) -> None:
    used, idle, named = built_tree("one", "1"), built_tree("one", "2"), built_tree("one", "3")
    removed = store.prune(lambda digest: ["sandbox7"] if digest == used else [])
    assert [image.digest for image in removed] == [idle]
    assert [image.digest for image in store.list()] == [named, used]


def test_leftovers_are_cleared_and_images_are_not(store: ImageStore, built_tree: Adopt) -> None:
    built_tree("one", "1")
    store.new_tree()
    assert store.clear_leftovers() == 1
    assert store.clear_leftovers() == 0
    assert store.resolve("one").rootfs.is_dir()


@pytest.mark.parametrize("name", ["", "UPPER", "a/b", "..", ".hidden", "-flag", "tmp", "names", "x" * 64, "a\n"])
def test_names_that_cannot_be_tags_or_files_are_refused(store: ImageStore, built_tree: Adopt, name: str) -> None:
    with pytest.raises(InvalidRequest):
        built_tree(name, "1")


def test_unreadable_metadata_is_a_typed_error(store: ImageStore, built_tree: Adopt) -> None:
    built_tree("one", "1")
    (store.resolve("one").rootfs.parent / "metadata.json").write_text("{}")
    with pytest.raises(ClocheError, match=r"metadata\.json cannot be read"):
        store.resolve("one")


def test_a_packed_file_of_an_older_version_is_ignored_and_goes_with_its_image(
    store: ImageStore, built_tree: Adopt
) -> None:
    digest = built_tree("one", "1")
    packed = store.resolve("one").rootfs.with_name("root.erofs")
    packed.write_bytes(b"1")
    assert built_tree("one", "1") == store.resolve(digest).digest == digest
    assert store.remove("one") is True
    assert not packed.parent.exists()
