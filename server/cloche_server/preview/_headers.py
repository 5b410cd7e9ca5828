"""Headers across the border: what of a request an app sees, and what of its answer a browser. Pure.

The app sees one world, that of `localhost:PORT`: Host, Origin and Referer all say so, in plain requests and in upgrades, as
if the browser ran beside it. So development servers that check Host or Origin (Vite, webpack, Django, Jupyter, Next.js) need
no settings. The answer is translated back: redirects, and the origins of CORS. docs/decisions/0004-previews.md says why
there is no X-Forwarded-Host.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from cloche_server.auth import KEY_PREFIX
from cloche_server.preview._names import PreviewHost, parse_host

Headers = list[tuple[str, str]]

COOKIE_PREFIX: Final = "cloche_"
COOKIE: Final = "cloche_preview"
SECURE_COOKIE: Final = "__Host-cloche_preview"
TOKEN_PARAMETER: Final = "cloche_token"

_HOP_BY_HOP: Final = frozenset(
    {
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
        *("te", "trailer", "transfer-encoding", "upgrade", "http2-settings"),
    }
)

_SERVICE: Final = frozenset(
    {
        *("forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "true-client-ip", "cf-connecting-ip"),
        *("x-original-url", "x-original-uri", "x-original-host", "x-rewrite-url", "x-host", "x-scheme"),
    }
)
"""What proxies say about a request: only we may say it here."""

_SERVICE_PREFIXES: Final = ("x-forwarded-", "cloche-", "x-cloche-")

_FRAMING: Final = frozenset({"host", "content-length", "expect"})
"""Written anew by whoever sends the message on."""

_DROPPED_FROM_ANSWERS: Final = frozenset(
    {
        # reach beyond this origin: other hosts of the domain, other ports of the host
        *("strict-transport-security", "clear-site-data", "alt-svc", "service-worker-allowed", "refresh"),
        *("public-key-pins", "public-key-pins-report-only", "expect-ct", "nel", "report-to", "reporting-endpoints"),
        # orders to a proxy in front of this server
        *("x-accel-redirect", "x-accel-expires", "x-accel-limit-rate", "x-accel-charset", "x-sendfile"),
        *("x-lighttpd-send-file", "x-reproxy-url", "cdn-cache-control", "surrogate-control", "x-litespeed-location"),
    }
)

_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]", "0.0.0.0"})
_URL: Final = re.compile(r"(?:(https?|wss?):)?//([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_OUR_KEY: Final = re.compile(re.escape(KEY_PREFIX) + r"[A-Za-z0-9_-]{16,}")


@dataclass(frozen=True, slots=True)
class Border:
    """One preview and how it is reached. ``is_api`` knows the authorities of the control API."""

    host: PreviewHost
    scheme: str
    domain: str
    private: bool
    is_api: Callable[[str], bool]

    @property
    def outer_origin(self) -> str:
        return f"{self.scheme}://{self.host.authority}"

    def is_own_origin(self, origin: str) -> bool:
        """This preview, or another port of the same sandbox."""
        return self.to_inner(origin) is not None

    def to_inner(self, url: str) -> str | None:
        """A URL at a preview of this sandbox as the sandbox knows it; None for any other URL."""
        match = _URL.fullmatch(url)
        if match is None:
            return None
        found = parse_host(match[2], self.domain)
        if (
            found is None
            or found.sandbox_id != self.host.sandbox_id
            or self._suffix(found.authority) != self._suffix(self.host.authority)
        ):
            return None
        return f"http://localhost:{found.port}{match[3]}"

    def to_outer(self, url: str) -> str | None:
        """A URL at the sandbox' own loopback as browsers reach it; None for any other URL."""
        match = _URL.fullmatch(url)
        if match is None:
            return None
        name, port = split_authority(match[2].lower())
        if name not in _LOCAL_NAMES or port is None:
            return None
        authority = f"{port}-{self.host.sandbox_id}.{self.domain}{self._suffix(self.host.authority)}"
        return f"{self.scheme}://{authority}{match[3]}"

    def is_api_url(self, url: str) -> bool:
        match = _URL.fullmatch(url)
        return match is not None and self.is_api(match[2].lower())

    @staticmethod
    def _suffix(authority: str) -> str:
        return "".join(authority.partition(":")[1:])


def split_authority(authority: str) -> tuple[str, int | None]:
    """Name and port; the port None when there is none or it is no number. No user information: that is no name of ours."""
    name, colon, port = authority.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65_536):
        return authority, None
    return name, int(port)


def request_headers(given: Iterable[tuple[str, str]], border: Border, client: str, upgrade: bool) -> Headers:
    """For the app, without those of framing. ``client`` is the address of who asks."""
    listed = list(given)
    named = _named_by_connection(listed)
    sent: Headers = [("Host", f"localhost:{border.host.port}")]
    for name, value in listed:
        # WSGI and CGI make no difference between - and _.
        plain = name.lower().replace("_", "-")
        if plain in _HOP_BY_HOP or plain in _FRAMING or plain in named or _is_service(plain):
            continue
        kept = _request_value(plain, value, border)
        if kept is not None:
            sent.append((name, kept))
    if upgrade:
        sent += [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    return [*sent, ("X-Forwarded-For", client), ("Cloche-Preview-Origin", border.outer_origin)]


def _is_service(name: str) -> bool:
    return name in _SERVICE or name.startswith(_SERVICE_PREFIXES)


def _request_value(name: str, value: str, border: Border) -> str | None:
    if name == "cookie":
        return foreign_cookies(value) or None
    if name in {"origin", "referer"}:
        inner = border.to_inner(value)
        if inner is not None:
            return without_token(inner)
    return None if holds_key(value) else value


def holds_key(value: str) -> bool:
    """An API key is in it, plainly or within Basic credentials; wherever a client puts one, the sandbox does not get it."""
    if _OUR_KEY.search(value):
        return True
    scheme, _, rest = value.strip().partition(" ")
    if scheme.lower() != "basic":
        return False
    try:
        return _OUR_KEY.search(base64.b64decode(rest.strip()).decode("latin-1")) is not None
    except (ValueError, binascii.Error):
        return False


def _named_by_connection(headers: Iterable[tuple[str, str]]) -> set[str]:
    values = [value for name, value in headers if name.lower() == "connection"]
    return {token.strip().lower() for value in values for token in value.split(",")}


def cookies_named(header: str, wanted: str) -> list[str]:
    """Every value of that name: a browser may have several, and any of them may be the good one."""
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return [value.strip() for name, _, value in pairs if name.strip() == wanted]


def foreign_cookies(header: str) -> str:
    """The Cookie header without ours."""
    kept = [pair.strip() for pair in header.split(";") if not _is_ours(pair.partition("=")[0])]
    return "; ".join(pair for pair in kept if pair and not holds_key(pair))


def _is_ours(cookie_name: str) -> bool:
    name = cookie_name.strip().lower().removeprefix("__host-").removeprefix("__secure-")
    return name == "cloche" or name.startswith(COOKIE_PREFIX)


def without_token(target: str) -> str:
    """The target or URL without our parameter; every other byte stays."""
    path, mark, query = target.partition("?")
    if not mark or f"{TOKEN_PARAMETER}=" not in query:
        return target
    kept = [part for part in query.split("&") if not part.startswith(f"{TOKEN_PARAMETER}=")]
    return f"{path}?{'&'.join(kept)}" if kept else path


def token_of(target: str) -> str | None:
    """The first value of our parameter. Tokens have no character that URLs escape."""
    for part in target.partition("?")[2].split("&"):
        name, equals, value = part.partition("=")
        if equals and name == TOKEN_PARAMETER:
            return value
    return None


def response_headers(given: Iterable[tuple[str, str]], border: Border) -> Headers:
    """For the browser, without those of framing except Content-Length."""
    listed = list(given)
    named = _named_by_connection(listed) - {"content-length"}
    sent: Headers = []
    for name, value in listed:
        plain = name.lower()
        if plain in _HOP_BY_HOP or plain in named or plain in _DROPPED_FROM_ANSWERS:
            continue
        if plain.startswith(("cloche-", "x-cloche-", "proxy-")):
            continue
        kept = _response_value(plain, value, border)
        if kept is not None:
            sent.append((name, kept))
    if border.private:
        sent = [*(pair for pair in sent if pair[0].lower() != "cache-control"), _private_cache(sent)]
    return sent


def _response_value(name: str, value: str, border: Border) -> str | None:
    if name == "set-cookie":
        return own_cookie(value)
    if name in {"location", "content-location", "access-control-allow-origin"}:
        outer = border.to_outer(value)
        if outer is not None:
            return outer
        return None if border.is_api_url(value) else value
    return value


def own_cookie(value: str) -> str | None:
    """A cookie for this very host: no Domain. None for one that would pass for ours."""
    first, *attributes = value.split(";")
    if _is_ours(first.partition("=")[0]):
        return None
    kept = [part for part in attributes if part.partition("=")[0].strip().lower() != "domain"]
    return ";".join([first, *kept])


def _private_cache(headers: Headers) -> tuple[str, str]:
    """Caches that several people share (a CDN in front) must not keep what only some may see."""
    directives = [
        part.strip() for name, value in headers if name.lower() == "cache-control" for part in value.split(",")
    ]
    shared = ("public", "private", "s-maxage")
    kept = [part for part in directives if part and part.partition("=")[0].strip().lower() not in shared]
    return "Cache-Control", ", ".join(["private", *kept])
