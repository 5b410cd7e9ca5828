"""What makes two new sandboxes alike, apart from what is bound to one when it is handed out. Pure.

A create is served from a pool exactly when its recipe is the one the ready sandboxes were made by. Name, labels, metadata,
lifecycle and environment are no part of it: these are bound late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cloche.models import Resources, SandboxCreate
from cloche_server.state import PoolRow, SandboxRow


@dataclass(frozen=True, slots=True)
class Recipe:
    """``template`` is ``name@version``, which says everything; the rest is of an image alone."""

    template: str | None = None
    image_digest: str | None = None
    driver: str | None = None
    resources: Resources | None = None
    sudo: bool | None = None


DEFAULT_IMAGE: Final = "python"


def create_of(row: PoolRow) -> SandboxCreate:
    """What a pool of an image is filled with."""
    said = {"driver": row.driver, "resources": row.resources, "sudo": row.sudo}
    given = {name: value for name, value in said.items() if value is not None}
    return SandboxCreate.model_validate({"image": row.image or DEFAULT_IMAGE, "warm": False, **given})


def recipe_of_row(row: SandboxRow) -> Recipe:
    """By which a ready sandbox was made."""
    if row.origin.kind == "template":
        return Recipe(template=row.origin.id)
    return Recipe(None, row.image_digest, row.driver, row.resources, row.sudo)


def may_be_warm(wanted: SandboxCreate) -> bool:
    """Volumes are mounted when a sandbox starts, and a snapshot is not what pools are filled from."""
    return wanted.warm and wanted.snapshot is None and not wanted.volumes
