"""An image, and the metadata file that lies beside its tree."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class ImageMetadata(BaseModel):
    """``metadata.json``: written once with the tree, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: str
    name: str
    """The name it was built under; names may point elsewhere since."""
    created_at: datetime
    size_bytes: int
    entries: int
    inputs: str
    """Hash of everything the build read: the same inputs need no second build."""
    parent: str | None
    """What the Dockerfile's last stage is FROM."""
    builder: str
    env: dict[str, str]
    entrypoint: list[str]


@dataclass(frozen=True)
class Image:
    """A read-only root file system in the store. ``rootfs`` belongs to the store: put a copy-on-write layer over it."""

    name: str
    digest: str
    rootfs: Path
    env: dict[str, str]
    entrypoint: tuple[str, ...]
    created_at: datetime
    size_bytes: int
    metadata: ImageMetadata
