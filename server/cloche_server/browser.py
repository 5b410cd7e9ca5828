"""What a browser may show instead of a key: the cookie of a session, or the token of a link to one terminal. Pure, but for
the keys it looks up.

Ambient credentials need more than a key does: whoever comes by cookie must also say, by Origin, that one of our own
pages asks (`needs_origin`). The cookie's name has the port in it, since browsers share cookies over the ports of a host.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cloche_server.auth import Principal
from cloche_server.links import TOKEN_PREFIX, LinkSigner
from cloche_server.state import KeyStore

SESSION: Final = "session"
SHARE_SUBPROTOCOL: Final = "cloche.share."
"""A WebSocket of a page can send no header, and a token in a URL would be logged; so it is offered as a subprotocol."""


def cookie_name(host: str) -> str:
    """For the Host header of a request."""
    port = host.rpartition(":")[2]
    return f"cloche_{port}" if port.isdecimal() else "cloche"


def share_token(authorization: str | None, subprotocols: Iterable[str]) -> str | None:
    """The link's token that a request shows, if it shows one."""
    scheme, _, secret = (authorization or "").strip().partition(" ")
    if scheme.lower() == "bearer" and secret.strip().startswith(TOKEN_PREFIX):
        return secret.strip()
    offered = (name.strip() for name in subprotocols)
    return next((name[len(SHARE_SUBPROTOCOL) :] for name in offered if name.startswith(SHARE_SUBPROTOCOL)), None)


def session_principal(links: LinkSigner, keys: KeyStore, cookie: str, now: float) -> Principal | None:
    """Whoever the key of the session belongs to; None when it is over or the key was revoked."""
    fields = links.read(SESSION, cookie, now)
    return None if fields is None else keys.principal(fields["key"])
