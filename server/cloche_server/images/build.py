"""Builds an image directory into the store.

Rules: the same inputs build nothing; what is built is built in a temporary directory and appears by one rename; one
build at a time; parents become local images of the builder, not of the store; every step says how long it took.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cloche_server.images.base import ensure_base
from cloche_server.images.buildah import Buildah
from cloche_server.images.builder import Builder
from cloche_server.images.docker import Docker
from cloche_server.images.errors import BuilderMissing, ImageNotFound
from cloche_server.images.host_settings import MOUNT, write_settings
from cloche_server.images.image import Image
from cloche_server.images.lock import DEFAULT_WAIT_S, build_lock
from cloche_server.images.paths import default_cache_dir
from cloche_server.images.process import Report
from cloche_server.images.recipe import Recipe, read_recipe, stage
from cloche_server.images.store import ImageStore

_VOLATILE: Final = (MOUNT.lstrip("/"), "run/adduser", "run/lock")
"""Empty entries that builders and Debian's scripts leave under /run, which is a fresh tmpfs on a real machine."""


def build_image(
    store: ImageStore,
    name: str,
    directory: Path,
    report: Report,
    *,
    fresh: bool = False,
    cache_dir: Path | None = None,
    lock_wait_s: float = DEFAULT_WAIT_S,
) -> Image:
    """The image of ``directory`` under ``name``; built only when something it is made of has changed.

    ``fresh`` builds from nothing, base included. Raises `BadRecipe`, `BuilderMissing`, `ImageBuildFailed` or
    `BuildLockTimeout`; none of them changes what ``name`` pointed at.
    """
    recipe = read_recipe(name, directory)
    known = None if fresh else _up_to_date(store, recipe)
    if known:
        report(f"image {name} is up to date: {known.digest}")
        return known
    cache = cache_dir or default_cache_dir()
    with build_lock(cache / "build.lock", report, lock_wait_s) as lock:
        # Whoever held the lock before may have built just this.
        known = None if fresh else _up_to_date(store, recipe)
        if known:
            return known
        with _scratch(cache / "tmp") as scratch:
            return _build(store, recipe, choose_builder(cache, lock), scratch, report, fresh=fresh)


def choose_builder(cache_dir: Path, lock: int) -> Builder:
    """buildah where it can be used, else Docker where its engine answers. Raises `BuilderMissing`."""
    if Buildah.usable():
        return Buildah(cache_dir, lock)
    if Docker.usable():
        return Docker(cache_dir, lock)
    why = "buildah is not installed and no Docker engine answers" if os.geteuid() == 0 else "building needs root"
    raise BuilderMissing(
        f"no image can be built here: {why}", hint="apt-get install buildah mmdebstrap, and run it as root"
    )


def _up_to_date(store: ImageStore, recipe: Recipe) -> Image | None:
    image = _earlier(store, recipe.name)
    return image if image and image.metadata.inputs == recipe.inputs else None


def _earlier(store: ImageStore, name: str) -> Image | None:
    try:
        image = store.resolve(name)
    except ImageNotFound:
        return None
    return image if image.rootfs.is_dir() else None


def _build(store: ImageStore, recipe: Recipe, builder: Builder, scratch: Path, report: Report, *, fresh: bool) -> Image:
    started = time.monotonic()
    report(f"building image {recipe.name} from {recipe.directory} with {builder.name}")
    store.clear_leftovers()
    builder.tidy()
    write_settings(scratch / "settings", report, debian=recipe.on_debian)
    _build_layers(recipe, builder, scratch, report, fresh=fresh)
    image = _export(store, recipe, builder, report)
    size_mb = image.size_bytes / 1e6
    report(f"image {recipe.name}: {image.digest}, {size_mb:.0f} MB, {time.monotonic() - started:.1f} s in all")
    return image


def _build_layers(recipe: Recipe, builder: Builder, scratch: Path, report: Report, *, fresh: bool) -> None:
    """Makes ``recipe.tag`` a local image of the builder, parents first."""
    if not fresh and builder.inputs(recipe.tag) == recipe.inputs:
        report(f"{recipe.tag}: layers are up to date")
        return
    if recipe.parent:
        _build_layers(recipe.parent, builder, scratch, report, fresh=fresh)
        own_debian = False
    else:
        own_debian = recipe.on_debian and ensure_base(builder, recipe.base, scratch, report, fresh=fresh)
    with _timed(f"{recipe.tag}: Dockerfile", report):
        context = scratch / f"context-{recipe.name}"
        stage(recipe, context, own_debian=own_debian)
        builder.build(context, recipe.tag, scratch / "settings", recipe.inputs, report, fresh=fresh)


def _export(store: ImageStore, recipe: Recipe, builder: Builder, report: Report) -> Image:
    directory, earlier = store.new_tree(), _earlier(store, recipe.name)
    with _timed(f"{recipe.tag}: writing the tree", report):
        builder.export(recipe.tag, directory / "rootfs", report, earlier.rootfs if earlier else None)
        _finish(directory / "rootfs")
    with _timed(f"{recipe.tag}: content digest", report):
        config = builder.config(recipe.tag)
        return store.adopt(
            directory,
            recipe.name,
            inputs=recipe.inputs,
            parent=recipe.base,
            builder=builder.name,
            env=dict(config.env),
            entrypoint=config.entrypoint,
        )


def _finish(rootfs: Path) -> None:
    # An image made from scratch has a root directory of mode 0555, which keeps root without capabilities from writing.
    rootfs.chmod(0o755)
    for relative in _VOLATILE:
        path = rootfs / relative
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()


@contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """A directory for this build alone (the lock is held), rid of what a killed one left in it."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    # mmdebstrap's packages are unpacked by another user, who must get here.
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _timed(what: str, report: Callable[[str], None]) -> Iterator[None]:
    report(f"{what} ...")
    started = time.monotonic()
    yield
    report(f"{what}: {time.monotonic() - started:.1f} s")
