"""What the sandbox service is given: images, volumes, and the operator's limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from cloche.errors import NotFound
from cloche.models import VolumeAttachment
from cloche_server.drivers import VolumeMount


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


class Volumes(Protocol):
    """`cloche_server.volumes.VolumeService`, or `NoVolumes`."""

    def resolve(self, owner: str, attachments: Sequence[VolumeAttachment], /) -> list[VolumeAttachment]:
        """The same with ids in the place of names. `NotFound`."""

    async def mounts(self, owner: str, attachments: Sequence[VolumeAttachment], /) -> list[VolumeMount]:
        """For a sandbox that starts, whose row names these volumes already. `NotFound`."""


class NoVolumes:
    """Of a server without them."""

    def resolve(self, _owner: str, attachments: Sequence[VolumeAttachment]) -> list[VolumeAttachment]:
        for attachment in attachments:
            raise NotFound(f"there is no volume {attachment.volume!r}", details={"kind": "volume"})
        return []

    async def mounts(self, _owner: str, _attachments: Sequence[VolumeAttachment]) -> list[VolumeMount]:
        return []


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the sandbox service; from the settings of the same names."""

    max_sandboxes: int = 500
    max_sandboxes_per_owner: int = 250
    max_running: int = 100
    start_timeout_s: float = 60
    destroy_timeout_s: float = 30
