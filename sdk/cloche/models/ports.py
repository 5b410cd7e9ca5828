"""Ports: what listens in a sandbox. Reaching one from outside is a preview (`cloche.models.previews`)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cloche.models._base import Model

PortNumber = Annotated[int, Field(ge=1, le=65_535)]


class PortHolder(Model):
    """A process that listens. ``command`` is what it calls itself: untrusted text."""

    pid: int
    command: str


class ListeningPort(Model):
    """One TCP port something listens on, IPv4 and IPv6 together."""

    port: PortNumber
    addresses: list[str] = Field(description="it listens on, as 127.0.0.1, 0.0.0.0, ::1 or ::")
    process: PortHolder | None = Field(description="the oldest process that holds it; null: not found")
