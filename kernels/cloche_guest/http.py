"""The HTTP edge: bodies in, models out, every mistake of a caller a typed error. Handlers only translate."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

import pydantic
from pydantic import BaseModel, JsonValue
from tornado import httputil, web
from tornado.http1connection import HTTP1Connection

from cloche.errors import (
    BodyTooLarge,
    ClocheError,
    InternalError,
    InvalidRequest,
    LimitReached,
    MethodNotAllowed,
    NotFound,
)
from cloche.models import Model

log = logging.getLogger(__name__)

MAX_BODY_BYTES: Final = 32 * 1024 * 1024
"""4 MiB of code at its worst JSON escaping (six bytes a character), and room for an environment."""

HANG_UP_BYTES: Final = 2 * MAX_BODY_BYTES
"""A body sent in chunks says its size only at its end; after so much of it the connection is closed without an answer."""

_METHODS: Final = ("GET", "POST", "PUT", "DELETE")
_MAX_ERRORS: Final = 20

Body = TypeVar("Body", bound=BaseModel)


@web.stream_request_body
class Handler(web.RequestHandler):
    """Base of all handlers. The body is collected here, so that one that is too large gets an answer: Tornado's own limit
    only hangs up."""

    _body_size = 0

    def compute_etag(self) -> None:
        return None

    def set_default_headers(self) -> None:
        self.set_header("Content-Type", "application/json")
        self.clear_header("Server")
        self.set_header("X-Request-Id", self.request_id)

    @cached_property
    def request_id(self) -> str:
        """What the server calls this request, if that is a harmless string; else one of ours."""
        value = self.request.headers.get("X-Request-Id", "")
        return value if re.fullmatch(r"[\w.:-]{1,128}", value) else secrets.token_hex(8)

    def prepare(self) -> Awaitable[None] | None:
        self._body = bytearray()
        if self.request.method not in self._allowed():
            raise web.HTTPError(405)
        if int(self.request.headers.get("Content-Length", "0")) > MAX_BODY_BYTES:
            raise _too_large()
        return None

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """What is over the limit is counted and dropped; `read_body` says so."""
        self._body_size += len(chunk)
        if self._body_size <= MAX_BODY_BYTES:
            self._body += chunk
        return None

    def read_body(self, model: type[Body]) -> Body:
        """
        Raises:
            BodyTooLarge: over `MAX_BODY_BYTES`.
            InvalidRequest: not JSON, or not this model.
        """
        if self._body_size > MAX_BODY_BYTES:
            raise _too_large()
        try:
            return model.model_validate_json(bytes(self._body) or b"{}")
        except pydantic.ValidationError as error:
            raise invalid(error) from None

    def read_bytes(self) -> bytes:
        """
        Raises:
            BodyTooLarge: over `MAX_BODY_BYTES`.
        """
        if self._body_size > MAX_BODY_BYTES:
            raise _too_large()
        return bytes(self._body)

    def read_query(self, model: type[Body]) -> Body:
        """The query parameters as a model, each at most once but for those that are lists.

        Raises:
            InvalidRequest: unknown, repeated or bad parameters.
        """
        values: dict[str, str | list[str]] = {}
        for name, given in self.request.query_arguments.items():
            texts = [value.decode("utf-8", "replace") for value in given]
            field = model.model_fields.get(name)
            if field is not None and isinstance(field.default, list):
                values[name] = texts
            elif len(given) != 1:
                raise _invalid_field(name, "given more than once")
            else:
                values[name] = texts[0]
        try:
            return model.model_validate(values)
        except pydantic.ValidationError as error:
            raise invalid(error) from None

    def answer(self, model: BaseModel, status: int = 200) -> None:
        """Send a model and finish."""
        self.set_status(status)
        self.finish(model.model_dump_json())

    def finish(self, chunk: str | bytes | dict[str, Any] | None = None) -> asyncio.Future[None]:
        """Tornado hangs up behind an answer that is given before the request was read to its end. It is said, or the next
        request would be sent into a connection that is just being closed."""
        connection = self.request.connection
        if isinstance(connection, HTTP1Connection) and not connection._read_finished and not self._headers_written:
            self.set_header("Connection", "close")
        return super().finish(chunk)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = self._to_error(status_code, (kwargs.get("exc_info") or (None, None, None))[1])
        if isinstance(error, LimitReached):
            self.application.settings["tell"]("limit_reached", {"message": error.message, **error.details})
        if isinstance(error, MethodNotAllowed):
            self.set_header("Allow", ", ".join(self._allowed()))
        self.set_status(error.status)
        self.finish(error.to_body(self.request_id).model_dump_json())

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Callers' mistakes are no news; what we did not foresee is."""
        if not isinstance(value, ClocheError | web.HTTPError):
            super().log_exception(typ, value, tb)

    def _to_error(self, status_code: int, error: BaseException | None) -> ClocheError:
        if isinstance(error, ClocheError):
            return error
        if status_code == 405:
            allowed: list[JsonValue] = list(self._allowed())
            return MethodNotAllowed(f"{self.request.method} is not possible here", details={"allowed": allowed})
        if status_code == 404:
            return NotFound(
                f"there is nothing at {self.request.path}", details={"kind": "path", "id": self.request.path}
            )
        if 400 <= status_code < 500:
            return InvalidRequest(f"not a request this guest understands: {error}")
        return InternalError("the guest failed; its log has the traceback")

    def _allowed(self) -> Sequence[str]:
        base = web.RequestHandler
        return [name for name in _METHODS if getattr(type(self), name.lower()) is not getattr(base, name.lower())]


class NoSuchPath(Handler):
    """Everything that has no route."""

    def prepare(self) -> None:
        raise web.HTTPError(404)


class NoQuery(Model):
    """For routes without query parameters."""


def invalid(error: pydantic.ValidationError) -> InvalidRequest:
    """pydantic's findings as ``details.errors``; the values themselves are left out, they may be secrets."""
    problems: list[JsonValue] = []
    for item in error.errors(include_url=False, include_context=False, include_input=False)[:_MAX_ERRORS]:
        field = ".".join(str(part)[:128] for part in item["loc"])
        problems.append({"field": field, "problem": item["msg"]})
    first = problems[0] if problems else None
    where = f"{first['field']}: {first['problem']}" if isinstance(first, dict) else "bad value"
    return InvalidRequest(f"invalid request: {where}", details={"errors": problems})


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"the body is over {MAX_BODY_BYTES} bytes", details={"limit_bytes": MAX_BODY_BYTES})


def _invalid_field(field: str, problem: str) -> InvalidRequest:
    errors: list[JsonValue] = [{"field": field[:128], "problem": problem}]
    return InvalidRequest(f"invalid request: {field[:128]}: {problem}", details={"errors": errors})


def quiet_log(handler: web.RequestHandler) -> None:
    """No access log: the server has one, and the guest's output is for what goes wrong."""


def wants(headers: httputil.HTTPHeaders | Mapping[str, str], media_type: str) -> bool:
    """The Accept header names this media type."""
    return media_type in headers.get("Accept", "")
