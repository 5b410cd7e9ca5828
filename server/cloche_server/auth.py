"""Keys and what they allow. Pure: no database, no HTTP.

A secret is ``clk_`` and 256 random bits. It is stored as a plain SHA-256: slow password hashes protect *guessable*
secrets, and nobody guesses 256 bits; a fast hash keeps the check out of every request's latency.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from typing import Final

from cloche.errors import Forbidden, Unauthenticated
from cloche.models import Role

KEY_PREFIX: Final = "clk_"

MAX_SECRET_LENGTH: Final = 128
"""Real ones have 47 characters; anything much longer is not hashed at all."""

_RANK: Final = {Role.VIEWER: 0, Role.MEMBER: 1, Role.ADMIN: 2}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who is asking."""

    key_id: str
    owner: str
    role: Role
    share_id: str | None = None
    """Of the link that it came by, when it did."""

    @classmethod
    def by_share(cls, share_id: str, owner: str) -> Principal:
        """Whoever has this link. Logs show its id where they show a key's."""
        return cls(key_id=share_id, owner=owner, role=Role.VIEWER, share_id=share_id)

    @property
    def sees_all(self) -> bool:
        return self.role is Role.ADMIN

    def may_see(self, owner: str) -> bool:
        """Foreign objects look as if they did not exist."""
        return self.sees_all or owner == self.owner


def new_secret() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def hash_secret(secret: str) -> str:
    """Hex SHA-256: what the database keeps of keys and of uplink tokens."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def bearer_secret(header: str | None) -> str:
    """The secret in an Authorization header. `Unauthenticated` says what is wrong with it, never repeats it."""
    hint = "send the header 'Authorization: Bearer clk_...'"
    if header is None:
        raise Unauthenticated("no key was given", hint=hint)
    scheme, _, secret = header.strip().partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret.startswith(KEY_PREFIX) or len(secret) > MAX_SECRET_LENGTH:
        raise Unauthenticated("the Authorization header holds no Cloche key", hint=hint)
    return secret


def require_role(principal: Principal, least: Role) -> None:
    """`Forbidden` when the key's role is below ``least``."""
    if _RANK[principal.role] < _RANK[least]:
        raise Forbidden(
            f"this needs the role {least.value}; the key has {principal.role.value}",
            hint="ask an admin for another key: cloche keys create",
            details={"needed": least.value, "role": principal.role.value},
        )
