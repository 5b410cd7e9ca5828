"""Tokens of previews: signed, expiring, good for one preview and one use. Pure.

Every preview has a random secret of its own; a new secret revokes all that was signed with the old one. What is signed names
the kind (a link, or the cookie a link was swapped for), the sandbox and the port, so nothing is accepted elsewhere.
API keys and these tokens have nothing in common: neither is ever accepted as the other.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["link", "cookie"]

_NONCE_BYTES: Final = 16
_BODY_BYTES: Final = 8 + _NONCE_BYTES
_MAC_BYTES: Final = 32
_PREFIX: Final = "clt_"
TOKEN_LENGTH: Final = len(_PREFIX) + 75
"""Of base64 without padding over 56 bytes. Anything of another length is not even decoded."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a token is good for."""

    kind: Kind
    sandbox_id: str
    port: int

    def encode(self) -> bytes:
        return f"cloche preview {self.kind} {self.sandbox_id} {self.port}".encode()


def new_preview_secret() -> str:
    """256 bits, in hex."""
    return secrets.token_hex(32)


def sign_token(secret: str, purpose: Purpose, expires_us: int, nonce: bytes | None = None) -> str:
    """A token that is good until ``expires_us``."""
    body = expires_us.to_bytes(8, "big") + (nonce or secrets.token_bytes(_NONCE_BYTES))
    raw = body + _mac(secret, purpose, body)
    return _PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def check_token(secret: str, purpose: Purpose, token: str, now_us: int) -> int | None:
    """When it ends, in microseconds; None unless it was signed for this purpose and has not ended."""
    if len(token) != TOKEN_LENGTH or not token.startswith(_PREFIX):
        return None
    try:
        raw = base64.b64decode(token[len(_PREFIX) :].encode("ascii") + b"=", altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None
    body = raw[:_BODY_BYTES]
    if not hmac.compare_digest(raw[_BODY_BYTES:], _mac(secret, purpose, body)):
        return None
    expires_us = int.from_bytes(body[:8], "big")
    return expires_us if expires_us > now_us else None


def _mac(secret: str, purpose: Purpose, body: bytes) -> bytes:
    mac = hmac.digest(bytes.fromhex(secret), purpose.encode() + b"\0" + body, hashlib.sha256)
    assert len(mac) == _MAC_BYTES
    return mac
