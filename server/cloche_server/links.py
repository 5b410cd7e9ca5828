"""Links: signed statements that are carried by browsers. Pure.

| purpose | says | lasts |
|---|---|---|
| share | whoever has this may watch one terminal | as its maker chose, or until it is revoked (`cloche_server.shares`) |
| session | this browser belongs to a key | `SESSION_S`; ends with the key |

A token is ``clt_``, the payload and an HMAC-SHA256 over purpose and payload, both base64url. The MAC is checked before
anything is parsed. A token of one purpose is none of another, and none is an API key. Removing ``link.key`` and
restarting the server ends them all.

A *login* is different: it is used once, so it is kept in memory and not signed (`Logins`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Final

TOKEN_PREFIX: Final = "clt_"
MAX_TOKEN_LENGTH: Final = 1024
SESSION_S: Final = 7 * 24 * 3600
LOGIN_S: Final = 300
MAX_LOGINS: Final = 1000


class LinkSigner:
    """Signs and checks with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def sign(self, purpose: str, fields: Mapping[str, str], expires_at: int) -> str:
        """``expires_at``: seconds since 1970."""
        payload = json.dumps({**fields, "exp": expires_at}, separators=(",", ":"), sort_keys=True).encode()
        return f"{TOKEN_PREFIX}{_encode(payload)}.{_encode(self._mac(purpose, payload))}"

    def read(self, purpose: str, token: str, now: float) -> Mapping[str, str] | None:
        """The fields; None for a token that is forged, of another purpose, or over."""
        if not token.startswith(TOKEN_PREFIX) or len(token) > MAX_TOKEN_LENGTH or not token.isascii():
            return None
        body, _, mac = token.removeprefix(TOKEN_PREFIX).partition(".")
        try:
            payload, given = _decode(body), _decode(mac)
        except binascii.Error:
            return None
        if not hmac.compare_digest(given, self._mac(purpose, payload)):
            return None
        fields: dict[str, str | int] = json.loads(payload)
        expires_at = fields.pop("exp")
        return None if now >= float(expires_at) else {name: str(value) for name, value in fields.items()}

    def _mac(self, purpose: str, payload: bytes) -> bytes:
        return hmac.digest(self._key, purpose.encode() + b"\0" + payload, hashlib.sha256)


class Logins:
    """One-time tokens that turn into a session: each works once, for `LOGIN_S` seconds."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, float]] = {}

    def create(self, key_id: str, now: float) -> str:
        """For a browser of the holder of this key."""
        self._open = {token: login for token, login in self._open.items() if login[1] > now}
        while len(self._open) >= MAX_LOGINS:
            del self._open[next(iter(self._open))]
        token = secrets.token_urlsafe(32)
        self._open[token] = (key_id, now + LOGIN_S)
        return token

    def use(self, token: str, now: float) -> str | None:
        """The key's id; None when the token is unknown, used or over."""
        key_id, expires_at = self._open.pop(token, ("", 0.0))
        return key_id if expires_at > now else None


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
