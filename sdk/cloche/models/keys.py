"""API keys: who may do what."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from cloche.models._base import KeyId, Model, Name, Timestamp


class Role(StrEnum):
    """``admin``: everything, of all owners. ``member``: the objects of its owner. ``viewer``: look at them only."""

    ADMIN = "admin"
    MEMBER = "member"
    VIEWER = "viewer"


class KeyCreate(Model):
    """Body of ``POST /v1/keys`` (role admin)."""

    owner: Name
    role: Role = Role.MEMBER
    label: str = Field(default="", max_length=128)


class Key(Model):
    """A key without its secret: the server keeps only a hash."""

    id: KeyId
    owner: str
    role: Role
    label: str
    created_at: Timestamp
    revoked_at: Timestamp | None


class NewKey(Key):
    """The answer to a create: the one time the ``secret`` is shown."""

    secret: str
