"""Foreign errors: what httpx raises, as errors of Cloche. Every request passes through here, so none escapes."""

from __future__ import annotations

from typing import Final

import httpx
import httpx_sse

from cloche.errors import ClocheError, ConnectionFailed, InvalidRequest, WaitTimeout

FOREIGN_ERRORS: Final = (
    httpx.HTTPError,
    httpx.InvalidURL,
    httpx.StreamError,
    httpx.CookieConflict,
    httpx_sse.SSEError,
    OSError,  # httpx opens CA files and proxies' sockets itself
)

NEVER_SENT: Final = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)


def mapped(error: BaseException, *, url: str, reached_before: bool, bound_s: float) -> ClocheError:
    """The error of Cloche for ``error``.

    ``details.sent`` is false when the request cannot have reached the server; ``details.reached_before`` says whether
    this client ever got an answer from it.
    """
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        details = {"bound_s": bound_s, "sent": True, "reached_before": reached_before}
        return WaitTimeout(f"{url} did not answer within {bound_s:g} s", details=details)
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return InvalidRequest(f"{url!r} cannot be used as a URL: {error}")
    sent = not isinstance(error, NEVER_SENT)
    what = "lost the connection to" if sent or reached_before else "cannot reach a server at"
    return ConnectionFailed(
        f"{what} {url}: {_reason(error)}",
        hint=None if reached_before else "start one with `cloche serve`, or set CLOCHE_URL",
        details={"url": url, "sent": sent, "reached_before": reached_before},
    )


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
