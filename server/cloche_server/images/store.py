"""The images on this machine: trees by digest, and names that point at digests.

::

    <data_dir>/images/<hex>/rootfs          the tree; never written to after it is here
    <data_dir>/images/<hex>/metadata.json   `ImageMetadata`
    <data_dir>/images/names/<name>          one line: the digest
    <data_dir>/images/tmp/                  being built or being deleted; a build clears it

A directory ``<hex>`` appears by one rename and vanishes by one rename, so what can be seen is always whole. A reader
needs no lock; writers (`adopt`, `clear_leftovers`) run under the build lock.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from cloche.errors import InvalidRequest
from cloche_server.images.digest import summarise_tree
from cloche_server.images.errors import ImageInUse, ImageNotFound
from cloche_server.images.image import Image, ImageMetadata
from cloche_server.images.paths import default_data_dir

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
"""What both buildah and docker take as the last part of a tag."""
_HEX: Final = re.compile(r"[0-9a-f]{64}\Z")
_SHORTEST_PREFIX: Final = 8

InUse = Callable[[str], Sequence[str]]
"""Digest -> the sandboxes and snapshots that use it; empty when none does."""


def nobody_uses(_digest: str) -> Sequence[str]:
    """The `InUse` of a machine without sandboxes."""
    return ()


def check_name(name: str) -> str:
    """The name itself; `InvalidRequest` for one that cannot be a tag or a file name."""
    if not NAME.match(name) or name in {"names", "tmp"}:
        raise InvalidRequest(
            f"image name {name!r} is not usable", hint="up to 63 of a-z 0-9 . _ -, beginning with a letter or digit"
        )
    return name


class ImageStore:
    """See the module's words for the layout and who may write."""

    def __init__(self, data_dir: Path | None = None) -> None:
        self.root: Final = (data_dir or default_data_dir()) / "images"
        self._names: Final = self.root / "names"
        self._tmp: Final = self.root / "tmp"

    def resolve(self, reference: str) -> Image:
        """The image of this name, digest, or digest prefix of at least 8 hex digits. Raises `ImageNotFound`."""
        digest = self._digest_of_name(reference) or self._digest_of_prefix(reference.removeprefix("sha256:"))
        image = self._load(digest, reference) if digest else None
        if image is None:
            known = sorted(self.names())
            raise ImageNotFound(
                f"no image {reference!r}; there are: {', '.join(known) or 'none'}",
                hint=f"cloche image build {reference}",
                details={"kind": "image", "id": reference, "known": list(known)},
            )
        return image

    def list(self) -> Sequence[Image]:
        """One entry per name, and one (named by its digest's first 12 digits) per image that lost its name."""
        names = self.names()
        named = [image for name, digest in sorted(names.items()) if (image := self._load(digest, name))]
        lost = [digest for digest in self._digests() if digest not in names.values()]
        return named + [image for digest in lost if (image := self._load(digest, _hex(digest)[:12]))]

    def names(self) -> dict[str, str]:
        """Name -> digest."""
        if not self._names.is_dir():
            return {}
        found = {path.name: self._digest_of_name(path.name) for path in self._names.iterdir()}
        return {name: digest for name, digest in found.items() if digest}

    def remove(self, reference: str, in_use: InUse = nobody_uses) -> bool:
        """Takes the name away, and the tree with it when no other name is left; True when the tree went too.

        Raises `ImageInUse` when the tree would go and a sandbox or snapshot uses it, `ImageNotFound` when there is no such image.
        """
        image = self.resolve(reference)
        others = [name for name, digest in self.names().items() if digest == image.digest and name != reference]
        by_name = self._digest_of_name(reference) is not None
        if by_name and others:
            (self._names / reference).unlink()
            return False
        users = in_use(image.digest)
        if users:
            more = f" and {len(users) - 5} more" if len(users) > 5 else ""
            raise ImageInUse(
                f"image {reference!r} is used by {len(users)} sandbox(es) or snapshot(s): {', '.join(users[:5])}{more}",
                hint="delete these first",
                details={"users": list(users)},
            )
        for name in [*others, *([reference] if by_name else [])]:
            (self._names / name).unlink(missing_ok=True)
        self._discard(image.rootfs.parent)
        return True

    def prune(self, in_use: InUse = nobody_uses) -> Sequence[Image]:
        """Removes the images that lost their name to a newer build and that nobody uses; what was removed."""
        named = set(self.names().values())
        idle = [one for one in self.list() if one.digest not in named and not in_use(one.digest)]
        for one in idle:
            self._discard(one.rootfs.parent)
        return idle

    def new_tree(self) -> Path:
        """An empty directory on the store's file system to build a tree in; `adopt` it or it is cleared later."""
        self._tmp.mkdir(parents=True, exist_ok=True, mode=0o755)
        directory = self._tmp / f"build-{secrets.token_hex(6)}"
        (directory / "rootfs").mkdir(parents=True)
        return directory

    def adopt(
        self,
        directory: Path,
        name: str,
        *,
        inputs: str,
        parent: str | None,
        builder: str,
        env: dict[str, str],
        entrypoint: Sequence[str],
    ) -> Image:
        """Makes the tree in ``directory`` (of `new_tree`) an image and points ``name`` at it.

        When the same content is here already the new copy is dropped and the old one kept: sandboxes may read it.
        """
        summary = summarise_tree(directory / "rootfs")
        metadata = ImageMetadata(
            digest=summary.digest,
            name=check_name(name),
            created_at=datetime.now(UTC),
            size_bytes=summary.size_bytes,
            entries=summary.entries,
            inputs=inputs,
            parent=parent,
            builder=builder,
            env=env,
            entrypoint=[*entrypoint],
        )
        (directory / "metadata.json").write_text(metadata.model_dump_json(indent=2) + "\n")
        target = self.root / _hex(summary.digest)
        if target.is_dir():
            # The metadata is replaced, for the inputs in it: they say that these inputs need no second build.
            os.replace(directory / "metadata.json", target / "metadata.json")
            shutil.rmtree(directory)
        else:
            os.rename(directory, target)
        self._point(name, summary.digest)
        return self.resolve(name)

    def clear_leftovers(self) -> int:
        """Deletes what killed builds and removals left in ``tmp``; how many there were. Only under the build lock."""
        leftovers = list(self._tmp.iterdir()) if self._tmp.is_dir() else []
        for path in leftovers:
            _delete(path)
        return len(leftovers)

    def _point(self, name: str, digest: str) -> None:
        self._names.mkdir(parents=True, exist_ok=True)
        self._tmp.mkdir(parents=True, exist_ok=True)
        fresh = self._tmp / f"name-{secrets.token_hex(6)}"
        fresh.write_text(digest + "\n")
        os.replace(fresh, self._names / name)

    def _discard(self, directory: Path) -> None:
        self._tmp.mkdir(parents=True, exist_ok=True)
        doomed = self._tmp / f"remove-{secrets.token_hex(6)}"
        os.rename(directory, doomed)
        _delete(doomed)

    def _digest_of_name(self, name: str) -> str | None:
        if not NAME.match(name):
            return None
        try:
            return (self._names / name).read_text().strip() or None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _digest_of_prefix(self, prefix: str) -> str | None:
        if len(prefix) < _SHORTEST_PREFIX:
            return None
        matches = [digest for digest in self._digests() if _hex(digest).startswith(prefix)]
        return matches[0] if len(matches) == 1 else None

    def _digests(self) -> Iterator[str]:
        if self.root.is_dir():
            yield from sorted(f"sha256:{path.name}" for path in self.root.iterdir() if _HEX.match(path.name))

    def _load(self, digest: str, name: str) -> Image | None:
        directory = self.root / _hex(digest)
        try:
            metadata = ImageMetadata.model_validate_json((directory / "metadata.json").read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValidationError as error:
            raise ImageNotFound(
                f"{directory}/metadata.json cannot be read: {error.error_count()} problem(s)",
                hint="remove that directory and build the image again",
            ) from error
        return Image(
            name=name,
            digest=digest,
            rootfs=directory / "rootfs",
            env=dict(metadata.env),
            entrypoint=tuple(metadata.entrypoint),
            created_at=metadata.created_at,
            size_bytes=metadata.size_bytes,
            metadata=metadata,
        )


def _delete(path: Path) -> None:
    """Deletes a file or a tree; parts that vanish meanwhile (two clearing at once) are as good as deleted."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=_unless_gone)
    else:
        path.unlink(missing_ok=True)


def _unless_gone(_function: object, _path: object, problem: tuple[object, BaseException, object]) -> None:
    if not isinstance(problem[1], FileNotFoundError):
        raise problem[1]


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
