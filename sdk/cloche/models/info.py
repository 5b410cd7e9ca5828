"""What a server says about itself and its machine."""

from __future__ import annotations

from cloche.models._base import Model, Timestamp


class DriverReport(Model):
    """Outcome of a driver's self-test."""

    name: str
    works: bool
    isolation: str
    version: str | None
    capabilities: list[str]
    why_not: str | None = None
    how_to_fix: str | None = None


class Info(Model):
    """``GET /v1/info``. ``default_driver`` is the strongest that works; null when none does."""

    version: str
    default_driver: str | None
    drivers: list[DriverReport]
    owner: str
    role: str


class Health(Model):
    """``GET /v1/health``: no key needed, nothing told."""

    status: str


class Image(Model):
    """A root file system that sandboxes can be made from."""

    name: str | None
    digest: str
    created_at: Timestamp
    size_bytes: int
    parent: str | None = None


class ImageList(Model):
    """Images of this server, newest first."""

    images: list[Image]
