"""Requests that are answered once, or with server-sent events."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from tornado.iostream import StreamClosedError
from tornado.web import stream_request_body

from cloche.errors import BodyTooLarge, ClocheError, ConnectionFailed, GuestFault
from cloche_server.http._base import BaseHandler, idempotency_key, last_event_id
from cloche_server.http._bodies import parse_body, refuse_body
from cloche_server.http._sse import EventTail, failure_event
from cloche_server.relay import CHECKED_BYTES, STREAM_SILENCE_S, GuestAnswer, GuestCall, call_guest, check_json
from cloche_server.routing import Call, Matched, NoQuery, Query, Reply, Route, Streams, invalid, parse_query
from cloche_server.services import Services

_LOG: Final = logging.getLogger("cloche.http")

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
        self.is_stream = False

    def prepare(self) -> None:
        try:
            if self.request.method != "OPTIONS" or self.matched is None:
                self.admit()
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

    def data_received(self, chunk: bytes) -> None:
        self._received += len(chunk)
        if self._refusal is None and self._received <= self._limit:
            self._body += chunk
        else:
            self._body.clear()

    def on_connection_close(self) -> None:
        """The client went away: what it asked for goes on, but nobody waits for the answer any more."""
        if self._task is not None and self.route is not None and self.route.to_guest:
            self._task.cancel()

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
        if self._refusal is not None:
            raise self._refusal
        self._check_length()
        route = self.route
        assert route is not None
        call = self._call(route)
        if route.streams is Streams.SOCKET:
            raise invalid([("Upgrade", "this path speaks WebSocket only")])
        if route.act is not None:
            self._reply(await route.act(self.services, call))
        else:
            await self._relay(route, call)

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
            idempotency_key=idempotency_key(headers.get("Idempotency-Key")),
            wants_events="text/event-stream" in headers.get("Accept", "").lower(),
            last_event_id=last_event_id(headers.get("Last-Event-ID")),
            host=headers.get("Host", ""),
            secure=self.request.protocol == "https",
        )

    def _query(self, route: Route) -> Query:
        return parse_query(self.request.query, route.query)

    def _reply(self, reply: Reply) -> None:
        self.set_status(reply.status)
        self.set_header("Content-Type", reply.content_type)
        for name, value in reply.headers.items():
            self.set_header(name, value)
        self.finish(reply.body if isinstance(reply.body, bytes) else reply.body.model_dump_json())

    # Relay

    async def _relay(self, route: Route, call: Call) -> None:
        streaming = route.streams is Streams.ALWAYS or (route.streams is Streams.ON_REQUEST and call.wants_events)
        live = self.services.sandboxes.running(call.principal, call.path["sandbox_id"])
        wanted = guest_call(route, call, streaming)
        answer = await call_guest(live.uplink.pool, wanted, self.services.settings.max_answer_bytes)
        try:
            if answer.run_id is not None:
                self.set_header("Cloche-Run-Id", answer.run_id)
            if streaming:
                await self._relay_events(answer)
            elif route.raw_type is not None:
                await self._relay_raw(answer, route.raw_type)
            else:
                await self._relay_json(answer)
        finally:
            answer.close()

    async def _relay_json(self, answer: GuestAnswer) -> None:
        self.set_status(answer.status)
        self.set_header("Content-Type", "application/json")
        if answer.length is not None and answer.length <= CHECKED_BYTES:
            self.finish(check_json(await answer.whole(CHECKED_BYTES)))
            return
        await self._relay_parts(answer)

    async def _relay_raw(self, answer: GuestAnswer, content_type: str) -> None:
        """Bytes of the sandbox: to be saved, never to be shown as a page of ours."""
        self.set_status(answer.status)
        self.set_header("Content-Type", content_type)
        self.set_header("Content-Disposition", "attachment")
        self.set_header("Content-Security-Policy", "sandbox")
        await self._relay_parts(answer)

    async def _relay_parts(self, answer: GuestAnswer) -> None:
        """As they come; nothing but the end of the connection can say that the rest is missing."""
        if answer.length is not None:
            self.set_header("Content-Length", str(answer.length))
        try:
            async for part in answer.parts(STREAM_SILENCE_S):
                self.write(part)
                await self.flush()
        except (ClocheError, asyncio.CancelledError) as error:
            if not self._headers_written:
                raise
            # No error can follow half a body: the cut connection is what tells the client.
            self._uncancel()
            _LOG.warning("an answer was cut short", extra={"request_id": self.request_id, "why": repr(error)})
            self._abandon()
            return
        self.finish()

    async def _relay_events(self, answer: GuestAnswer) -> None:
        """Part by part, as fast as the client reads. A failure becomes the last event, unless one is half sent."""
        if not answer.is_stream:
            raise GuestFault("the guest did not answer with a stream of events")
        self.is_stream = True
        if self.services.open_calls.closing:
            raise _shutting_down()
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("X-Accel-Buffering", "no")
        await self.flush()
        tail = EventTail()
        try:
            async for part in answer.parts(STREAM_SILENCE_S):
                tail.feed(part)
                self.write(part)
                await self.flush()
        except ClocheError as error:
            self._end_events(tail, error)
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
    )


def _shutting_down() -> ConnectionFailed:
    return ConnectionFailed(
        "the server is shutting down; sandboxes go on", hint="try again in a moment, with the last cursor"
    )
