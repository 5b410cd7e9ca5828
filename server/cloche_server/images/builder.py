"""The seam between a build and the program that does it: buildah (no daemon, needs root) or a Docker engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from cloche_server.images.process import Report

INPUTS_LABEL: Final = "cloche.inputs"
"""The label of a finished image that holds its recipe's `inputs`."""


@dataclass(frozen=True)
class BuiltConfig:
    """What the Dockerfile said besides files."""

    env: Mapping[str, str]
    entrypoint: Sequence[str]


class Builder(Protocol):
    """Drives one build program. Every method runs under the build lock and raises `ImageBuildFailed`."""

    @property
    def name(self) -> str:
        """``buildah 1.28.2``, for the metadata."""

    def has(self, tag: str) -> bool:
        """Whether there is a local image of that name."""

    def inputs(self, tag: str) -> str | None:
        """The `INPUTS_LABEL` of a local image; None when there is no such image or it has none."""

    def pull(self, image: str, report: Report) -> bool:
        """Whether the registry image could be had, within a few seconds to its first answer."""

    def import_tar(self, tarball: Path, tag: str, report: Report) -> None:
        """Makes a local image of one root file system."""

    def build(self, context: Path, tag: str, settings: Path, inputs: str, report: Report, *, fresh: bool) -> None:
        """Builds ``context/Dockerfile``. ``fresh``: use no layer built before."""

    def export(self, tag: str, rootfs: Path, report: Report, like: Path | None) -> None:
        """Writes the whole tree of a local image into the empty directory ``rootfs``, owners and all.

        ``like`` is an earlier tree, never changed, whose equal files may be shared.
        """

    def config(self, tag: str) -> BuiltConfig:
        """Environment (without this machine's build settings) and entry point of a local image."""

    def tidy(self) -> None:
        """Clears what a killed build left behind in the builder's own store."""


def env_of(pairs: Sequence[str], without: Mapping[str, str]) -> dict[str, str]:
    """``["A=1"]`` -> ``{"A": "1"}``, without the variables whose name and value are in ``without``."""
    split = (pair.partition("=") for pair in pairs)
    return {name: value for name, _, value in split if without.get(name) != value}
