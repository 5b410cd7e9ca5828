"""What makes two new sandboxes alike, apart from what is bound to one when it is handed out. Pure.

A create is served from a pool exactly when its recipe is the one the ready sandboxes were made by. Name, labels, metadata,
lifecycle and environment are no part of it: these are bound late.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloche.models import Resources, SandboxCreate
from cloche_server.state import SandboxRow


@dataclass(frozen=True, slots=True)
class Recipe:
    """``template`` is ``name@version``, or None for an image alone."""

    template: str | None
    image_digest: str
    driver: str
    resources: Resources
    sudo: bool


def recipe_of_row(row: SandboxRow) -> Recipe:
    """By which a ready sandbox was made."""
    template = row.origin.id if row.origin.kind == "template" else None
    return Recipe(template, row.image_digest, row.driver, row.resources, row.sudo)


def may_be_warm(wanted: SandboxCreate) -> bool:
    """Volumes are mounted when a sandbox starts, and a snapshot is not what pools are filled from."""
    return wanted.warm and wanted.snapshot is None and not wanted.volumes
