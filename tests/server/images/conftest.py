"""Stores in temporary directories, over the machine's builder cache: the Debian base is built once, not per test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cloche_server.images import ImageStore
from cloche_server.images.paths import checkout_root


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "data")


@pytest.fixture
def lines() -> list[str]:
    """What a build reported: pass ``lines.append`` as its reporter."""
    return []


MakeDirectory = Callable[..., Path]


@pytest.fixture
def make_directory(tmp_path: Path) -> MakeDirectory:
    """``make_directory(name, dockerfile, **{file name: text})`` beside the real ``base`` image directory."""
    root = tmp_path / "sandbox_images"
    root.mkdir()
    (root / "base").symlink_to(checkout_root() / "sandbox_images/base")

    def make(name: str, dockerfile: str, **files: str) -> Path:
        directory = root / name
        directory.mkdir(exist_ok=True)
        for file, text in {"Dockerfile": dockerfile, **files}.items():
            (directory / file).write_text(text)
        return directory

    return make


@pytest.fixture
def built_tree(store: ImageStore) -> Callable[[str, str], str]:
    """``built_tree(name, content)`` puts a one-file image into the store without a builder; its digest."""

    def adopt(name: str, content: str) -> str:
        directory = store.new_tree()
        (directory / "rootfs/file").write_text(content)
        env, inputs = {"A": "1"}, f"sha256:{content}"
        image = store.adopt(directory, name, inputs=inputs, parent=None, builder="test", env=env, entrypoint=["/x"])
        return image.digest

    return adopt
