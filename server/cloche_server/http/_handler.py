"""Requests that are answered once, or with server-sent events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from math import inf
from typing import Any, Final
from urllib.parse import quote

from pydantic import BaseModel
from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamClosedError
from tornado.web import stream_request_body

from cloche.errors import BodyTooLarge, ClocheError, ConnectionFailed, GuestFault, SandboxUnreachable
from cloche.models import SandboxState
from cloche_server.http._base import BaseHandler, idempotency_key, last_event_id
from cloche_server.http._bodies import parse_body, refuse_body
from cloche_server.http._sse import EventTail, failure_event
from cloche_server.relay import (
    CHECKED_BYTES,
    STREAM_SILENCE_S,
    GuestAnswer,
    GuestCall,
    GuestUpload,
    call_guest,
    check_json,
)
from cloche_server.routing import BodySink, Call, Matched, NoQuery, Query, Reply, Route, Streams, invalid, parse_query
from cloche_server.sandboxes import Live, not_running
from cloche_server.services import Services

_LOG: Final = logging.getLogger("cloche.http")

MAX_UPLOAD_BYTES: Final = 2**50
MAX_UPLOAD_S: Final = 7 * 24 * 3600.0
"""Tornado wants numbers for bodies of any size; what really bounds them is the disk, and silence."""

UPLOAD_SILENCE_S: Final = 60.0
MAX_CONDITION: Final = 4096

DRAINED_BYTES: Final = 256 * 1024 * 1024
"""A refused body up to this size is read to its end and thrown away, so that the client gets to read our answer (about
0.3 s for the largest); for a longer one the connection is cut behind the answer, and the client may see only that."""


@stream_request_body
class ApiHandler(BaseHandler):
    """One request of any route."""

    def initialize(self, services: Services, matched: Matched | None) -> None:
        super().initialize(services, matched)
        self._body = bytearray()
        self._received = 0
        self._refusal: ClocheError | None = None
        self._task: asyncio.Task[Any] | None = None
        self._stopping = False
        self._upload: GuestUpload | BodySink | None = None
        self._silence: asyncio.TimerHandle | None = None
        self.is_stream = False

    async def prepare(self) -> None:
        try:
            if self.request.method != "OPTIONS" or self.matched is None:
                self.admit()
            if self.route is not None and self.route.large and self.route.bytes_body:
                await self._open_upload(self.route)
            else:
                self._check_length()
        except ClocheError as error:
            if self.request.headers.get("Expect") or self._declared_length() > DRAINED_BYTES:
                raise
            self._refusal = error

    def _declared_length(self) -> int:
        length = self.request.headers.get("Content-Length", "0")
        return int(length) if length.isdecimal() else 0

    @property
    def _limit(self) -> int:
        return self.services.settings.max_body_bytes

    def _check_length(self) -> None:
        if max(self._declared_length(), self._received) > self._limit:
            raise BodyTooLarge(
                f"the request body is larger than {self._limit} bytes", details={"limit_bytes": self._limit}
            )

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._received += len(chunk)
        if self._upload is not None:
            return self._pass_on(self._upload, chunk)
        if self._refusal is None and self._received <= self._limit:
            self._body += chunk
        else:
            self._body.clear()
        return None

    def on_connection_close(self) -> None:
        """The client went away: what it asked for goes on, but nobody waits for the answer any more."""
        super().on_connection_close()
        self._end_upload()
        if self._task is not None and (self.is_stream or (self.route is not None and self.route.to_guest)):
            self._task.cancel()

    # Bodies of any size

    async def _open_upload(self, route: Route) -> None:
        """From here on the body goes to the guest as it comes; Tornado reads no more while we wait."""
        call = self._call(route)
        if self.services.open_calls.closing:
            raise _shutting_down()
        self._upload = await self._open_sink(route, call)
        connection = self.request.connection
        assert isinstance(connection, HTTP1Connection)
        connection.set_max_body_size(MAX_UPLOAD_BYTES)
        connection.set_body_timeout(MAX_UPLOAD_S)
        self._await_more()

    async def _open_sink(self, route: Route, call: Call) -> GuestUpload | BodySink:
        if route.sink is not None:
            return await route.sink(self.services, call)
        length = self._declared_length() if self.request.headers.get("Transfer-Encoding") is None else None
        wanted = guest_call(route, call, streaming=False)

        async def begin(live: Live) -> GuestUpload:
            return await GuestUpload.open(live.uplink.pool, wanted, length)

        return await self.reach(route, call.path["sandbox_id"], begin)

    async def _pass_on(self, upload: GuestUpload | BodySink, chunk: bytes) -> None:
        self._stop_waiting()
        if not await self._accepted(upload, chunk):
            self._upload = None
            left = self._declared_length() - self._received
            if left > DRAINED_BYTES and self._refusal is not None:
                self.write_error(self._refusal.status, exc_info=(type(self._refusal), self._refusal, None))
                return
            if isinstance(self.request.connection, HTTP1Connection):
                self.request.connection.set_max_body_size(self._received + DRAINED_BYTES)
        self._await_more()

    async def _answer_upload(self, upload: GuestUpload | BodySink) -> None:
        self._upload = None
        if not isinstance(upload, GuestUpload):
            await self._reply(await upload.reply())
            return
        answer = await upload.answer(self.services.settings.max_answer_bytes)
        try:
            if answer.etag is not None:
                self.set_header("ETag", answer.etag)
            await self._relay_json(answer)
        finally:
            answer.close()

    async def _accepted(self, upload: GuestUpload | BodySink, chunk: bytes) -> bool:
        """False: no more of it is wanted; the refusal says why."""
        try:
            if await upload.send(chunk):
                return True
            assert isinstance(upload, GuestUpload)
            (await upload.answer(self.services.settings.max_answer_bytes)).close()
            self._refusal = GuestFault("the guest was content with half of the body")
        except ClocheError as error:
            self._refusal = error
        return False

    def _await_more(self) -> None:
        """A client that sends nothing for so long is cut off; what it was writing is undone."""
        stream = getattr(self.request.connection, "stream", None)
        if stream is not None:
            self._silence = asyncio.get_running_loop().call_later(UPLOAD_SILENCE_S, stream.close)

    def _stop_waiting(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _end_upload(self) -> None:
        self._stop_waiting()
        if self._upload is not None:
            self._upload.close()
            self._upload = None

    def stop(self) -> None:
        """The server ends; see `OpenCalls`."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    # Dispatch

    async def _dispatch(self) -> None:
        self._task = asyncio.current_task()
        self.services.open_calls.add(self)
        try:
            await self._answer()
        except asyncio.CancelledError:
            if not self._stopping:
                self._abandon()
                return
            self._uncancel()
            raise _shutting_down() from None
        except StreamClosedError:
            self._abandon()
        finally:
            self._task = None
            self.services.open_calls.discard(self)

    get = post = put = patch = delete = head = _dispatch

    async def options(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        self.set_status(204)
        self.set_header("Allow", ", ".join(self.allowed_methods()))
        self.finish()

    def _uncancel(self) -> None:
        if self._task is not None:
            self._task.uncancel()

    def _abandon(self) -> None:
        """Nobody reads any more. Tornado would send an error into the void otherwise."""
        self._finished = True
        self.set_status(499, "Client Closed Request")
        self.on_finish()
        stream = getattr(self.request.connection, "stream", None)
        if stream is not None:
            stream.close()

    async def _answer(self) -> None:
        self._stop_waiting()
        if self._refusal is not None:
            raise self._refusal
        if self._upload is not None:
            await self._answer_upload(self._upload)
            return
        self._check_length()
        route = self.route
        assert route is not None
        call = self._call(route)
        if route.streams is Streams.SOCKET:
            raise invalid([("Upgrade", "this path speaks WebSocket only")])
        if route.act is not None:
            reply = await route.act(self.services, call)
            await self._reply(reply)
            self._observe(route, reply.status)
        else:
            await self._relay_to_living(route, call)

    def _call(self, route: Route) -> Call:
        assert self.principal is not None
        headers = self.request.headers
        raw = bytes(self._body)
        if route.body is None and route.method != "GET" and not route.bytes_body:
            refuse_body(raw)
        return Call(
            request_id=self.request_id,
            principal=self.principal,
            path=self.path_values(),
            query=NoQuery() if not self.request.query and route.query is NoQuery else self._query(route),
            body=None if route.body is None else parse_body(raw, route.body),
            content=raw if route.bytes_body else b"",
            conditions=passed_on(headers, route) if route.large else (),
            idempotency_key=idempotency_key(headers.get("Idempotency-Key")),
            wants_events="text/event-stream" in headers.get("Accept", "").lower(),
            last_event_id=last_event_id(headers.get("Last-Event-ID")),
            host=headers.get("Host", ""),
            secure=self.request.protocol == "https",
        )

    def _query(self, route: Route) -> Query:
        return parse_query(self.request.query, route.query)

    async def _reply(self, reply: Reply) -> None:
        self.set_status(reply.status)
        self.set_header("Content-Type", reply.content_type)
        for name, value in reply.headers.items():
            self.set_header(name, value)
        if isinstance(reply.body, bytes):
            self.finish(reply.body)
        elif isinstance(reply.body, BaseModel):
            self.finish(reply.body.model_dump_json())
        elif self.route is not None and self.route.streams is Streams.OWN:
            async with aclosing(reply.body):
                await self._send_events(reply.body, lambda error: error)
        else:
            async with aclosing(reply.body):
                await self._write_parts(reply.body)

    # Relay

    async def _relay_to_living(self, route: Route, call: Call) -> None:
        """A guest that cannot be reached may have ended just now: then that, and why, is the answer."""
        try:
            await self._relay(route, call)
        except SandboxUnreachable as error:
            if not self._headers_written:
                sandboxes, sandbox_id = self.services.sandboxes, call.path["sandbox_id"]
                await sandboxes.settle(sandbox_id)
                row = sandboxes.get(call.principal, sandbox_id)
                if row.state is SandboxState.FAILED:
                    raise not_running(row) from None
                raise self.why_cut(error, sandbox_id) from error
            raise

    async def _relay(self, route: Route, call: Call) -> None:
        streaming = route.streams is Streams.ALWAYS or (route.streams is Streams.ON_REQUEST and call.wants_events)
        wanted = guest_call(route, call, streaming)
        limit = inf if route.large else self.services.settings.max_answer_bytes

        async def begin(live: Live) -> GuestAnswer:
            return await call_guest(live.uplink.pool, wanted, limit)

        answer = await self.reach(route, call.path["sandbox_id"], begin)
        try:
            if answer.run_id is not None:
                self.set_header("Cloche-Run-Id", answer.run_id)
            if streaming:
                await self._relay_events(answer, call.path["sandbox_id"])
            elif route.raw_type is not None:
                self._name_content(answer, call.query)
                await self._relay_raw(answer, route.raw_type)
            else:
                await self._relay_json(answer)
                self._observe(route, answer.status)
        finally:
            answer.close()

    def _observe(self, route: Route, status: int) -> None:
        """202 is a run that is not finished: how long it takes is not known yet."""
        if route.timed is not None and status in (HTTPStatus.OK, HTTPStatus.CREATED):
            self.services.metrics.observe(route.timed, time.monotonic() - self._began)

    async def _relay_json(self, answer: GuestAnswer) -> None:
        self.set_status(answer.status)
        self.set_header("Content-Type", "application/json")
        if answer.length is not None and answer.length <= CHECKED_BYTES:
            self.finish(check_json(await answer.whole(CHECKED_BYTES)))
            return
        await self._relay_parts(answer)

    def _name_content(self, answer: GuestAnswer, query: Query) -> None:
        if answer.etag is not None:
            self.set_header("ETag", answer.etag)
        if answer.content_range is not None:
            self.set_header("Content-Range", answer.content_range)
        name = str(getattr(query, "path", "")).rstrip("/").rpartition("/")[2]
        quoted = quote(name, safe="", errors="surrogateescape")
        self.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{quoted}" if name else "attachment")

    async def _relay_raw(self, answer: GuestAnswer, content_type: str) -> None:
        """Bytes of the sandbox: to be saved, never to be shown as a page of ours."""
        self.set_status(answer.status)
        if answer.status == HTTPStatus.NOT_MODIFIED:
            self.finish()
            return
        self.set_header("Content-Type", content_type)
        self.set_header("Content-Security-Policy", "sandbox")
        await self._relay_parts(answer)

    async def _relay_parts(self, answer: GuestAnswer) -> None:
        """As they come; nothing but the end of the connection can say that the rest is missing."""
        if answer.length is not None:
            self.set_header("Content-Length", str(answer.length))
        await self._write_parts(answer.parts(STREAM_SILENCE_S))

    async def _write_parts(self, parts: AsyncIterator[bytes]) -> None:
        try:
            async for part in parts:
                self.write(part)
                await self.flush()
        except StreamClosedError:
            raise
        except (ClocheError, OSError, asyncio.CancelledError) as error:
            has_left = isinstance(error, asyncio.CancelledError) and not self._stopping
            if has_left or not self._headers_written:
                raise
            # No error can follow half a body: the cut connection is what tells the client.
            self._uncancel()
            _LOG.warning("an answer was cut short", extra={"request_id": self.request_id, "why": repr(error)})
            self._abandon()
            return
        self.finish()

    async def _relay_events(self, answer: GuestAnswer, sandbox_id: str) -> None:
        """Part by part, as fast as the client reads. A failure becomes the last event, unless one is half sent."""
        if not answer.is_stream:
            raise GuestFault("the guest did not answer with a stream of events")
        await self._send_events(answer.parts(STREAM_SILENCE_S), lambda error: self.why_cut(error, sandbox_id))

    async def _send_events(self, parts: AsyncIterator[bytes], why_cut: Callable[[ClocheError], ClocheError]) -> None:
        """``why_cut``: the better reason for a failure, if there is one."""
        self.is_stream = True
        if self.services.open_calls.closing:
            raise _shutting_down()
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        await self.flush()
        tail = EventTail()
        try:
            async for part in parts:
                tail.feed(part)
                self.write(part)
                await self.flush()
        except ClocheError as error:
            self._end_events(tail, why_cut(error))
        except asyncio.CancelledError:
            if not self._stopping:
                raise
            self._uncancel()
            self._end_events(tail, _shutting_down())
        else:
            self.finish()

    def _end_events(self, tail: EventTail, error: ClocheError) -> None:
        self.error_code = error.code
        if not tail.between_events:
            self._abandon()
            return
        self.finish(failure_event(error.to_body(self.request_id)))


def guest_call(route: Route, call: Call, streaming: bool) -> GuestCall:
    """The same call for the guest. Pure. Path values were checked against their grammars, so they need no quoting."""
    query = call.query.encode()
    path = route.guest_path.format_map({**call.path})
    wait_s = getattr(call.query, "wait_s", 0.0)
    return GuestCall(
        method=route.method,
        path=f"{path}?{query}" if query else path,
        statuses={200} if streaming else route.answers.keys(),
        bound_s=route.bound_s + (0 if streaming else wait_s),
        body=call.content if call.body is None else call.body.model_dump_json().encode(),
        accept="text/event-stream" if streaming else route.raw_type or "application/json",
        last_event_id=call.last_event_id if streaming else None,
        headers=call.conditions,
        looks=route.looks,
    )


def passed_on(headers: Mapping[str, str], route: Route) -> tuple[tuple[str, str], ...]:
    """Conditions and ranges for the guest: short, and printable ASCII."""
    found = [(name, headers[name]) for name in route.headers if name in headers]
    for name, value in found:
        if not (len(value) <= MAX_CONDITION and value.isascii() and value.isprintable()):
            raise invalid([(name, f"must be at most {MAX_CONDITION} printable ASCII characters")])
    return tuple(found)


def _shutting_down() -> ConnectionFailed:
    return ConnectionFailed(
        "the server is shutting down; sandboxes go on", hint="try again in a moment, with the last cursor"
    )
