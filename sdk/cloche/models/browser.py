"""Browsers: how one becomes logged in without a key in its hands."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from cloche.models._base import Model, Timestamp

UiPath = Annotated[str, StringConstraints(pattern=r"^/ui/[A-Za-z0-9/?&=._~-]*$", max_length=1024)]
"""A page of ours; nothing that a browser could read as another host."""


class BrowserLoginCreate(Model):
    """Body of ``POST /v1/browser/logins``."""

    next: UiPath = Field(default="/ui/terminal", description="the page to go on to")


class BrowserLogin(Model):
    """A link that logs one browser in as the caller, once."""

    path: str = Field(description="on this server; it holds a secret until it is used")
    expires_at: Timestamp
