"""What a template's version is made from, as one digest, and references to versions. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Protocol

from cloche.models import TemplateCreate


class Version(Protocol):
    """The parts of a template's row that choosing needs."""

    @property
    def version(self) -> int: ...
    @property
    def state(self) -> str: ...


def spec_digest(spec: TemplateCreate, image_digest: str, driver: str) -> str:
    """SHA-256 over everything that goes in, in hex. The name does not, nor whether a default was spelt out; the image is
    its content and the driver the one that is used, so that a rebuilt image or another default makes another version."""
    inputs = spec.model_dump(mode="json", exclude={"name", "image", "driver"})
    canonical = json.dumps({**inputs, "image_digest": image_digest, "driver": driver}, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def parse_reference(reference: str) -> tuple[str, int | None]:
    """``name@version``; None: the newest that is ready. The grammar was checked by the model."""
    name, _, version = reference.partition("@")
    return name, int(version) if version else None


def reference_of(name: str, version: int) -> str:
    return f"{name}@{version}"


def newest_ready(versions: Iterable[Version]) -> int | None:
    """The version that a bare name means; None: there is none."""
    return max((one.version for one in versions if one.state == "ready"), default=None)


def next_version(versions: Iterable[Version]) -> int:
    """Numbers are never used twice, so deleted versions count."""
    return max((one.version for one in versions), default=0) + 1
