"""What a visitor asks for: what may be passed on of it, and with what it wants to be let in. Knows no connection."""

from __future__ import annotations

from dataclasses import dataclass

from tornado import httputil

from cloche.errors import InvalidRequest, MethodNotAllowed, Unauthenticated
from cloche_server.auth import Principal, bearer_secret
from cloche_server.preview import _headers as rules
from cloche_server.preview._service import Credentials
from cloche_server.state import KeyStore

MAX_COOKIES = 8
"""Of our name; a browser sends one."""


@dataclass(slots=True)
class VisitorRequest:
    """The head of a request. ``target`` may be changed: the app never sees our token."""

    method: str
    target: str
    version: str
    headers: httputil.HTTPHeaders

    @property
    def as_page(self) -> bool:
        """Whether an answer of our own is for people."""
        return self.method in {"GET", "HEAD"} and "text/html" in self.headers.get("Accept", "").lower()

    @property
    def wants_upgrade(self) -> bool:
        tokens = {token.strip().lower() for token in self.headers.get("Connection", "").split(",")}
        return "upgrade" in tokens and self.headers.get("Upgrade", "").strip().lower() == "websocket"

    def check_form(self) -> None:
        """What may not be passed on: requests whose end or aim two servers could see differently.

        Raises:
            InvalidRequest, MethodNotAllowed
        """
        if self.method in {"CONNECT", "TRACE"}:
            raise MethodNotAllowed(f"{self.method} is not possible here", details={"allowed": []})
        if not (self.target.startswith("/") or (self.target == "*" and self.method == "OPTIONS")):
            raise InvalidRequest("the request target is not a path")
        self._check_length()
        if self.wants_upgrade and (self.method != "GET" or self.framing()):
            raise InvalidRequest("a WebSocket begins with a GET without a body")

    def _check_length(self) -> None:
        lengths = self.headers.get_list("Content-Length")
        codings = self.headers.get_list("Transfer-Encoding")
        well = [
            all(is_length(each) for each in lengths),
            len(lengths) < 2,
            [c.lower() for c in codings] in ([], ["chunked"]),
        ]
        if not all(well) or (lengths and codings):
            raise InvalidRequest("the length of the request's body is not clear")
        if self.version == "HTTP/1.0" and codings:
            raise InvalidRequest("HTTP/1.0 has no chunked bodies")

    def framing(self) -> rules.Headers:
        """The header that says how long the body is; none without a body."""
        if "Transfer-Encoding" in self.headers:
            return [("Transfer-Encoding", "chunked")]
        length = self.headers.get("Content-Length")
        return [] if length is None else [("Content-Length", length)]

    def credentials(self, cookie_name: str, keys: KeyStore) -> Credentials:
        """A token, cookies, a key: what is there."""
        cookies = [
            value for header in self.headers.get_list("Cookie") for value in rules.cookies_named(header, cookie_name)
        ]
        return Credentials(rules.token_of(self.target), tuple(cookies[:MAX_COOKIES]), self._principal(keys))

    def _principal(self, keys: KeyStore) -> Principal | None:
        header = self.headers.get("Authorization")
        if header is None or not rules.holds_key(header):
            return None
        try:
            return keys.find(bearer_secret(header))
        except Unauthenticated:
            return None


def is_length(text: str) -> bool:
    """A number of bytes, as a header may say it."""
    return text.isascii() and text.isdecimal() and len(text) <= 18
