"""Previews: URLs at which a port of a sandbox is reached from outside, by HTTP and WebSocket."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from cloche.models._base import Model, SandboxId, Timestamp
from cloche.models.ports import PortNumber

PreviewVisibility = Literal["private", "public"]

MAX_TOKEN_S: Final = 30 * 24 * 3600


class PreviewCreate(Model):
    """Body of ``POST .../previews/{port}``. Null means: as it is; a new preview is private and does not expire."""

    visibility: PreviewVisibility | None = Field(
        default=None, description="private: with a token or a key; public: everybody who can reach this server"
    )
    ttl_s: int | None = Field(default=None, ge=1, le=365 * 24 * 3600, description="seconds until the preview ends")


class Preview(Model):
    """One preview. Whether anything listens on the port now is said by the list of ports."""

    sandbox_id: SandboxId
    port: PortNumber
    url: str
    visibility: PreviewVisibility
    warning: str | None = Field(description="of a public preview: what that means")
    created_at: Timestamp
    expires_at: Timestamp | None


class PreviewTokenCreate(Model):
    """Body of ``POST .../previews/{port}/token``."""

    ttl_s: int = Field(default=24 * 3600, ge=1, le=MAX_TOKEN_S, description="seconds until the token ends")


class PreviewToken(Model):
    """A way into one preview for whoever has it. It is shown this once."""

    token: str
    url: str = Field(description="with the token; a browser swaps it for a cookie and forgets it")
    expires_at: Timestamp
