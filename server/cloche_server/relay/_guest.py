"""Calls to a guest: bounded, checked, with its failures turned into ours.

The guest is untrusted. From its answer we take the status (when the route knows it), the JSON body (within a cap) and
one header; an error body is parsed, and only its code, text and details go on, in an error of our own making.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import h11
import pydantic_core
from pydantic import JsonValue, ValidationError

from cloche.errors import ERRORS, ClocheError, ErrorBody, GuestFault, SandboxUnreachable
from cloche_server.relay._exchange import Exchange, ExchangeError
from cloche_server.uplink import Wire, WireClosed, WirePool

MAX_ERROR_BYTES: Final = 64 * 1024
CHECKED_BYTES: Final = 1024 * 1024
"""Answers up to this size are held back until they are complete and are JSON; larger ones pass as they come."""

STREAM_SILENCE_S: Final = 60.0
"""Streams carry a heartbeat every 15 s; four missing ones mean a guest that hangs."""

_ETAG: Final = re.compile(r'"[0-9a-f-]{1,100}"')
_CONTENT_RANGE: Final = re.compile(r"bytes \d{1,19}-\d{1,19}/\d{1,19}")
_RUN_ID: Final = re.compile(r"run-[a-z0-9]{12}")

OURS_ALONE: Final = frozenset(
    {
        *("unauthenticated", "forbidden", "method_not_allowed", "internal", "connection_failed", "guest_fault"),
        *("sandbox_not_running", "sandbox_unreachable", "sandbox_start_failed", "driver_unavailable"),
    }
)
"""Codes about keys, sandboxes, drivers and the server: a guest that uses one lies, or has a defect."""


@dataclass(frozen=True, slots=True)
class GuestCall:
    """One call: ``path`` begins with /v1; ``statuses`` are the good answers; ``bound_s`` is until the answer begins."""

    method: str
    path: str
    statuses: Collection[int]
    bound_s: float
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    accept: str = "application/json"
    last_event_id: str | None = None
    looks: bool = False
    """It does no work in the sandbox; see `Route.looks`."""


class GuestAnswer:
    """A good answer whose body is still to be read. Close it, whatever happens."""

    def __init__(self, exchange: Exchange, response: h11.Response, pool: WirePool, max_bytes: float) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        self.status: int = response.status_code
        self.is_stream = headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"
        self.length = int(headers["content-length"]) if "content-length" in headers else None
        run_id = headers.get("cloche-run-id", "")
        self.run_id = run_id if _RUN_ID.fullmatch(run_id) else None
        etag, span = headers.get("etag", ""), headers.get("content-range", "")
        self.etag = etag if _ETAG.fullmatch(etag) else None
        self.content_range = span if _CONTENT_RANGE.fullmatch(span) else None
        self._exchange = exchange
        self._pool = pool
        self._max_bytes = max_bytes
        exchange.wire.endless = self.is_stream

    async def parts(self, silence_s: float) -> AsyncIterator[bytes]:
        """The body. `GuestFault` over the cap, `SandboxUnreachable` after ``silence_s`` or when the guest goes away."""
        total = 0
        body = self._exchange.body(silence_s)
        while True:
            with as_our_errors(silence_s):
                part = await anext(body, None)
            if part is None:
                return
            total += len(part)
            if not self.is_stream and total > self._max_bytes:
                raise too_large(self._max_bytes)
            yield part

    def check_length(self) -> None:
        """`GuestFault` for an answer that says it is over the cap."""
        if not self.is_stream and self.length is not None and self.length > self._max_bytes:
            raise too_large(self._max_bytes)

    async def whole(self, limit: int, silence_s: float = 30.0) -> bytes:
        """The complete body; `GuestFault` when it is longer than ``limit``."""
        if self.length is not None and self.length > limit:
            raise too_large(limit)
        body = bytearray()
        async for part in self.parts(silence_s):
            body += part
            if len(body) > limit:
                raise too_large(limit)
        return bytes(body)

    def close(self) -> None:
        """Gives the connection back when it can serve again, else ends it."""
        if self._exchange.reusable:
            self._pool.put(self._exchange.wire)
        else:
            self._exchange.close()


@contextmanager
def as_our_errors(bound_s: float) -> Iterator[None]:
    """Whatever the guest does to a connection becomes `SandboxUnreachable` or `GuestFault`."""
    try:
        yield
    except TimeoutError as error:
        raise lost(bound_s) from error
    except WireClosed as error:
        raise cut() from error
    except ExchangeError as error:
        raise GuestFault(str(error)) from error


async def call_guest(pool: WirePool, call: GuestCall, max_bytes: float, wire: Wire | None = None) -> GuestAnswer:
    """The answer, once its head is there and good. Raises the guest's error as ours, or what kept it from answering.

    ``wire``: taken out of the pool before; None: any.
    """
    exchange = Exchange(wire or await pool.take())
    exchange.wire.looks = call.looks
    with as_our_errors(call.bound_s), closing_on_error(exchange):
        async with asyncio.timeout(call.bound_s):
            await exchange.send(call.method, call.path, request_headers(call), call.body)
    return await good_answer(exchange, call, pool, max_bytes)


async def good_answer(exchange: Exchange, call: GuestCall, pool: WirePool, max_bytes: float) -> GuestAnswer:
    """The answer to what was sent, once its head is there and good."""
    with closing_on_error(exchange):
        answer = GuestAnswer(exchange, await _head(exchange, call), pool, max_bytes)
        error = None if answer.status in call.statuses else await answer_error(answer)
        answer.check_length()
    if error is not None:
        answer.close()
        raise error
    return answer


@contextmanager
def closing_on_error(exchange: Exchange) -> Iterator[None]:
    """A connection whose call did not come to its end is of no more use."""
    try:
        yield
    except BaseException:
        exchange.close()
        raise


def request_headers(call: GuestCall) -> list[tuple[str, str]]:
    """What the guest is told besides the path."""
    headers = [("Accept", call.accept), *call.headers]
    if call.body:
        headers.append(("Content-Type", "application/json"))
    if call.last_event_id is not None:
        headers.append(("Last-Event-ID", call.last_event_id))
    return headers


async def _head(exchange: Exchange, call: GuestCall) -> h11.Response:
    with as_our_errors(call.bound_s):
        async with asyncio.timeout(call.bound_s):
            response = await exchange.head()
    if not isinstance(response, h11.Response):
        raise GuestFault("the guest changed the protocol without being asked")
    return response


async def answer_error(answer: GuestAnswer) -> ClocheError:
    """The error that an answer other than the good ones means."""
    if answer.status < 400:
        return GuestFault(f"the guest answered with the undocumented status {answer.status}")
    return error_from_guest(answer.status, await answer.whole(MAX_ERROR_BYTES))


def error_from_guest(status: int, raw: bytes) -> ClocheError:
    """Pure. The guest's words within our class of its code; `GuestFault` for what it must not say."""
    try:
        body = ErrorBody.model_validate_json(raw)
    except ValidationError:
        return GuestFault(f"the guest answered {status} without an error body")
    cls = ERRORS.get(body.code)
    if cls is None or body.code in OURS_ALONE or cls.status != status:
        return GuestFault(
            f"the guest failed: {printable(body.message)}", details={"status": status, "code": printable(body.code)}
        )
    hint = None if body.hint is None else printable(body.hint)
    details = {printable(name, 100): printable_json(value) for name, value in body.details.items()}
    return cls(printable(body.message), hint=hint, details=details)


def printable(text: str, limit: int = 2000) -> str:
    """Untrusted text that may land in a terminal: no control characters, not endless."""
    clean = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text[:limit])
    return clean + ("…" if len(text) > limit else "")


def printable_json(value: JsonValue) -> JsonValue:
    """The same for all strings within a value."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [printable_json(item) for item in value]
    if isinstance(value, dict):
        return {printable(name, 100): printable_json(item) for name, item in value.items()}
    return value


def check_json(body: bytes) -> bytes:
    """`GuestFault` unless it is a JSON object."""
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise GuestFault("the guest answered with something that is not JSON") from error
    if not isinstance(value, dict):
        raise GuestFault("the guest answered with JSON that is not an object")
    return body


def too_large(limit: float) -> GuestFault:
    return GuestFault(
        f"the guest's answer is larger than {limit} bytes",
        hint="follow the run's events instead of asking for the whole result",
        details={"limit_bytes": limit},
    )


def cut() -> SandboxUnreachable:
    return SandboxUnreachable(
        "the connection into the sandbox was cut before the answer was complete",
        hint="it may have been saved just now: send the call again. A run that was started goes on",
        details={"cut": True},
    )


def lost(bound_s: float) -> SandboxUnreachable:
    return SandboxUnreachable(
        f"the sandbox did not answer within {bound_s:g} s",
        hint="look at the sandbox' state; a run that was started goes on, and its events can be followed again",
        details={"bound_s": bound_s},
    )
