"""An image directory, read: what it is built from, and a hash of all of that.

A directory has a ``Dockerfile``; the whole directory is its build context. Two things are added to plain Dockerfiles:

- ``FROM localhost/cloche/<name>`` means the image directory ``../<name>`` beside this one, built first.
- a Dockerfile that copies from ``cloche/`` gets that directory added to its context: ``cloche/guest.txt``, the guest's
  lock file, and ``cloche/packages/``, the two Python packages that the guest is made of.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloche_server.images.errors import BadRecipe
from cloche_server.images.paths import checkout_root
from cloche_server.images.store import check_name

PARENT_PREFIX: Final = "localhost/cloche/"
DEBIAN_TAG: Final = f"{PARENT_PREFIX}debian-12"
"""The tag of the base that mmdebstrap made, where `debian:12-slim` cannot be had."""
_BUILDER_VERSION: Final = "1"
"""Part of every hash: raise it when a change here makes other images from the same directory."""
_FROM: Final = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$", re.IGNORECASE | re.MULTILINE)
_DEBIAN: Final = re.compile(r"debian:(?:12|bookworm)(?:-slim)?\Z")
_USES_GUEST: Final = re.compile(r"^\s*(?:COPY|ADD)\s.*\bcloche/", re.IGNORECASE | re.MULTILINE)
_MAX_DEPTH: Final = 8
"""Chains of image directories are two or three long; a longer one is a circle."""


@dataclass(frozen=True)
class Recipe:
    """``inputs`` changes when anything the build reads changes: files, the guest, a parent, this builder's version."""

    name: str
    directory: Path
    base: str
    parent: Recipe | None
    with_guest: bool
    inputs: str

    @property
    def tag(self) -> str:
        """What the builder calls the finished image."""
        return PARENT_PREFIX + self.name

    @property
    def on_debian(self) -> bool:
        """Whether, parents followed down, it stands on Debian 12."""
        return self.parent.on_debian if self.parent else bool(_DEBIAN.match(self.base))


def read_recipe(name: str, directory: Path, depth: int = 0) -> Recipe:
    """Reads ``directory`` and its parents. Raises `BadRecipe` with what is wrong."""
    check_name(name)
    if depth >= _MAX_DEPTH:
        raise BadRecipe(f"{directory}: more than {_MAX_DEPTH} image directories in a row; is there a circle?")
    text = _dockerfile(directory)
    base = _base(text, directory)
    parent = _parent(base, directory, depth)
    with_guest = bool(_USES_GUEST.search(text))
    if with_guest and (directory / "cloche").exists():
        raise BadRecipe(f"{directory}/cloche is in the way: that place in the context is the guest's")
    inputs = _hash_inputs(directory, parent.inputs if parent else base, with_guest)
    return Recipe(name, directory.resolve(), base, parent, with_guest, inputs)


def stage(recipe: Recipe, target: Path, *, own_debian: bool) -> None:
    """Copies the build context to ``target``. ``own_debian``: FROM lines that name Debian 12 get mmdebstrap's base."""
    shutil.copytree(recipe.directory, target, symlinks=True)
    if recipe.with_guest:
        for relative, source in _guest_files():
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / relative)
    if own_debian:
        dockerfile = target / "Dockerfile"
        dockerfile.write_text(_FROM.sub(_with_own_debian, dockerfile.read_text()))


def _with_own_debian(match: re.Match[str]) -> str:
    line, image = match.group(0), match.group(1)
    return line.replace(image, DEBIAN_TAG, 1) if _DEBIAN.match(image) else line


def _dockerfile(directory: Path) -> str:
    try:
        return (directory / "Dockerfile").read_text()
    except OSError as error:
        raise BadRecipe(
            f"{directory} has no readable Dockerfile: {error.strerror}",
            hint="name the image's directory: cloche image build NAME DIRECTORY",
        ) from error


def _base(text: str, directory: Path) -> str:
    """What the last stage stands on, stages followed back to the first that is not one of this file."""
    stages = {alias.lower(): image for image, alias in _FROM.findall(text) if alias}
    images = [image for image, _ in _FROM.findall(text)]
    if not images:
        raise BadRecipe(f"{directory}/Dockerfile has no FROM line")
    base = images[-1]
    for _ in range(len(images)):
        base = stages.get(base.lower(), base)
    return str(base)


def _parent(base: str, directory: Path, depth: int) -> Recipe | None:
    if not base.startswith(PARENT_PREFIX):
        return None
    name = base.removeprefix(PARENT_PREFIX).partition(":")[0]
    sibling = directory.resolve().parent / name
    if not sibling.is_dir():
        raise BadRecipe(f"{directory}/Dockerfile is FROM {base}, but there is no directory {sibling}")
    return read_recipe(name, sibling, depth + 1)


def _hash_inputs(directory: Path, below: str, with_guest: bool) -> str:
    total = hashlib.sha256(f"{_BUILDER_VERSION} {platform.machine()} {below}\n".encode())
    files = [*_tree_files(directory), *(_guest_files() if with_guest else ())]
    for relative, path in sorted(files):
        total.update(f"{relative}\0{os.lstat(path).st_mode:o}\0".encode())
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        total.update(hashlib.sha256(content).digest())
    return f"sha256:{total.hexdigest()}"


def _guest_files() -> Iterator[tuple[str, Path]]:
    """Path in the context -> file of this checkout."""
    root = checkout_root()
    yield "cloche/guest.txt", root / "constraints/guest.txt"
    for package in (root / "sdk/cloche", root / "kernels/cloche_guest"):
        for relative, path in _tree_files(package):
            yield f"cloche/packages/{package.name}/{relative}", path


def _tree_files(directory: Path) -> Iterator[tuple[str, Path]]:
    for parent, subdirectories, names in os.walk(directory):
        subdirectories[:] = [name for name in subdirectories if name != "__pycache__"]
        links = [name for name in subdirectories if os.path.islink(os.path.join(parent, name))]
        for name in [*names, *links]:
            path = Path(parent, name)
            yield str(path.relative_to(directory)), path
