"""What a visitor sees when it is not the app that answers: a page for browsers, the usual error body for programs. Pure.

The pages have no scripts and load nothing. The waiting page asks again by itself.
"""

from __future__ import annotations

import base64
import hashlib
import html
from dataclasses import dataclass
from typing import Final

from cloche.errors import ClocheError, NotFound, PortClosed

RETRY_AFTER_S: Final = 1

_STYLE: Final = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;display:grid;place-items:center;"
    "min-height:90vh;margin:0;padding:0 1rem;text-align:center}h1{font-size:1.3rem;margin:0 0 .5rem}p{margin:0;opacity:.75}"
)
_DIGEST: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
PAGE_CSP: Final = f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class OwnAnswer:
    """An answer of the gateway itself."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def no_preview() -> NotFound:
    """For every reason not to let somebody in; it names none of them."""
    return NotFound(
        "there is no preview here for you",
        hint="open it with a fresh link: cloche preview SANDBOX PORT",
        details={"kind": "preview"},
    )


def answer_of(error: ClocheError, request_id: str, *, as_page: bool) -> OwnAnswer:
    """``as_page``: a browser asks, and shows what it gets."""
    headers = [
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("X-Request-Id", request_id),
    ]
    if isinstance(error, PortClosed):
        headers.append(("Retry-After", str(RETRY_AFTER_S)))
    if as_page:
        body = _page(error).encode()
        headers += [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", PAGE_CSP)]
    else:
        body = error.to_body(request_id).model_dump_json().encode()
        headers.append(("Content-Type", "application/json"))
    return OwnAnswer(error.status, (*headers, ("Content-Length", str(len(body)))), body)


def _page(error: ClocheError) -> str:
    waits = isinstance(error, PortClosed)
    title = f"Waiting for port {error.details.get('port')}" if waits else "Cloche preview"
    text = "This page opens when a program listens there." if waits else error.message
    again = f'<meta http-equiv="refresh" content="{RETRY_AFTER_S}">' if waits else ""
    hint = f"<p>{html.escape(error.hint)}</p>" if error.hint and not waits else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{again}<title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><main><h1>{html.escape(title)}</h1><p>{html.escape(text)}</p>{hint}</main></body></html>"
    )
