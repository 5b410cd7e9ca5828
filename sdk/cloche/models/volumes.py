"""Volumes: named directories that outlive sandboxes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from cloche.models._base import Labels, Model, Name, SandboxId, Timestamp

VolumeId = Annotated[str, StringConstraints(pattern=r"^vol-[a-z0-9]{12}$")]


class VolumeCreate(Model):
    """Body of ``POST /v1/volumes``."""

    name: Name = Field(description="unique among the owner's volumes")
    size_mb: int = Field(default=1024, ge=16, le=1_048_576, description="MiB it may hold, enforced by its file system")
    labels: Labels = {}


class VolumeAttachment(Model):
    """``volume``: name or id. Several sandboxes may have the same one, also for writing."""

    volume: str = Field(min_length=1, max_length=64)
    path: str = Field(pattern=r"^/[^\x00]*$", max_length=1024, description="absolute, inside the sandbox")
    read_only: bool = False


class Volume(Model):
    """``used_bytes``: what is in it."""

    id: VolumeId
    name: str
    owner: str
    size_mb: int
    used_bytes: int
    labels: Labels
    attached_to: list[SandboxId]
    created_at: Timestamp
