"""What the sandbox service is given: images, and the operator's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol


class ResolvedImage(Protocol):
    """A root file system ready to be used."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def rootfs(self) -> Path: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def created_at(self) -> datetime: ...
    @property
    def size_bytes(self) -> int: ...


class Images(Protocol):
    """`cloche_server.images.ImageStore`, or a stand-in of a test."""

    def resolve(self, reference: str, /) -> ResolvedImage:
        """Raises `NotFound` with a hint how to build it."""

    def list(self) -> Sequence[ResolvedImage]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the sandbox service; from the settings of the same names."""

    max_sandboxes: int = 100
    max_sandboxes_per_owner: int = 50
    start_timeout_s: float = 60
    destroy_timeout_s: float = 30
