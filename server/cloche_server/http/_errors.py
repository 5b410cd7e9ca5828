"""From exceptions to error answers. Pure."""

from __future__ import annotations

from tornado.web import HTTPError

from cloche.errors import ClocheError, InternalError, InvalidRequest, MethodNotAllowed


def public_error(error: BaseException | None) -> ClocheError:
    """What the client is told. Anything unexpected becomes `InternalError` without a word of its text."""
    if isinstance(error, ClocheError):
        return error
    if isinstance(error, HTTPError):
        if error.status_code == 405:
            return MethodNotAllowed("no path has this method", details={"allowed": []})
        if error.status_code < 500:
            return InvalidRequest("the request could not be read")
    return InternalError(
        "something went wrong in the server", hint="the request id finds the cause in the server's log"
    )
