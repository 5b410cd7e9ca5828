"""Link: the way to a server. The only place that knows httpx; it carries out flows and knows no rule itself.

`Link` blocks, `AsyncLink` awaits; both keep connections open between calls, send small requests at once (TCP_NODELAY,
which httpcore sets), and turn every error of httpx into one of Cloche's. Both may be shared: `Link` by threads,
`AsyncLink` by the tasks of one event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, closing
from copy import copy
from functools import lru_cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NoReturn, Self, TypeAlias, TypeVar
from urllib.parse import urlencode

import httpx
import httpx_sse

from cloche._answers import Answer, error_of, read_answer
from cloche._calls import Call, Query
from cloche._config import Config
from cloche._flow import Ask, Flow, Follow, Pause, Step, Tell, Transfer, driven, driven_awaiting
from cloche._foreign_errors import FOREIGN_ERRORS, mapped
from cloche._life import Life
from cloche._patience import Patience
from cloche._tail import SILENCE_S, Frame, Tail
from cloche.errors import ClocheError
from cloche.models import Event

T = TypeVar("T")

CONNECT_S: Final = 10.0
"""A server that does not take a connection in this time is not there; TCP alone would try for minutes."""

KEPT_CONNECTIONS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=60.0)
"""No limit on open ones: every event stream holds one, and a limit would make unrelated calls wait for a stream."""


TRANSFER_BYTES: Final = 256 * 1024

URLS_KEPT: Final = 256
"""Parsed URLs: parsing takes as long as a small JSON body, and most calls go to the same few places."""


def _url(base: str, path: str, query: Query) -> httpx.URL:
    return httpx.URL(f"{base}{path}?{urlencode(query)}" if query else f"{base}{path}")


def _distribution_version() -> str:
    try:
        return version("cloche")
    except PackageNotFoundError:  # a source tree on sys.path
        return "0"


def _timeout(answer_within_s: float) -> httpx.Timeout:
    return httpx.Timeout(answer_within_s, connect=CONNECT_S)


Content: TypeAlias = "Iterator[bytes] | AsyncGenerator[bytes, None]"


class _LinkBase:
    """What both links share: the settings of their HTTP client, and whether the server ever answered."""

    def __init__(self, config: Config, patience: Patience) -> None:
        self.url = config.url
        self.patience = patience
        self._config = config
        self._shared_headers = self._headers()
        self._reached = False
        self._url_of = lru_cache(URLS_KEPT)(partial(_url, config.url))
        self._life: Life | None = None

    def of_life(self, life: Life) -> Self:
        """This link, its connections included, for what is done in one life of a sandbox."""
        view = copy(self)
        view._life = life
        return view

    @property
    def auth_headers(self) -> dict[str, str]:
        """For a connection of another kind to the same server."""
        return {name: value for name, value in (self._shared_headers | self._life_headers).items() if name != "Accept"}

    @property
    def _life_headers(self) -> dict[str, str]:
        return {} if self._life is None else self._life.headers

    def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": f"cloche-python/{_distribution_version()}", "Accept": "application/json"}
        if self._config.api_key is not None:
            headers["Authorization"] = f"Bearer {self._config.api_key}"
        return headers

    def _request(self, call: Call[T], content: Content | None = None) -> httpx.Request:
        """``call`` for `httpx.Client.send`: a client's own `request` merges URLs, headers and cookies for 0.12 ms more."""
        headers = {**self._shared_headers, **self._life_headers, **call.headers}
        if call.body is not None:
            headers.setdefault("Content-Type", "application/json")
        url = self._url_of(call.path, call.query)
        timeout = {"timeout": _timeout(call.answer_within_s).as_dict()}
        return httpx.Request(call.method, url, headers=headers, content=content or call.body, extensions=timeout)

    def _verify(self) -> ssl.SSLContext | bool:
        # Loading the CA certificates takes 30 ms, most of the life of a short script; plain HTTP needs none.
        return True if self.url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def _trust_env(self) -> bool:
        # A proxy from the environment would carry calls for 127.0.0.1 to another machine's loopback.
        return not self._config.is_loopback

    def _answer(self, response: httpx.Response) -> Answer:
        self._reached = True
        return Answer(
            response.status_code, response.content, response.headers.get("X-Request-Id"), self._config.key_file
        )

    def _raise(self, error: Exception, bound_s: float) -> NoReturn:
        if isinstance(error, ClocheError):
            raise error
        raise mapped(error, url=self.url, reached_before=self._reached, bound_s=bound_s) from error


class Link(_LinkBase):
    """Carries out flows by blocking the calling thread."""

    def __init__(self, config: Config, patience: Patience, transport: httpx.BaseTransport | None = None) -> None:
        super().__init__(config, patience)
        self._http = httpx.Client(
            base_url=config.url,
            headers=self._shared_headers,
            verify=self._verify(),
            trust_env=self._trust_env(),
            limits=KEPT_CONNECTIONS,
            transport=transport,
        )

    def close(self) -> None:
        """Close all connections. Nothing on the server changes."""
        self._http.close()

    def send(self, call: Call[T]) -> T:
        """Send ``call`` once and read its answer."""
        try:
            response = self._http.send(self._request(call))
        except FOREIGN_ERRORS as error:
            self._raise(error, call.answer_within_s)
        return read_answer(self._answer(response), call.parse)

    def follow(self, tail: Tail) -> Generator[Event, None, None]:
        """The events of ``tail``, over as many connections as it takes."""
        while not tail.done:
            try:
                with closing(self._frames(tail)) as frames:
                    for frame in frames:
                        event = tail.take(frame)
                        if event is not None:
                            yield event
                        if tail.done:
                            return
                pause_s = tail.lost(None)
            except ClocheError as error:
                pause_s = tail.lost(error)
            time.sleep(pause_s)

    def _frames(self, tail: Tail) -> Generator[Frame, None, None]:
        """The frames of one connection."""
        try:
            with httpx_sse.connect_sse(
                self._http, timeout=_timeout(SILENCE_S), **_opening(tail, self._life_headers)
            ) as source:
                if source.response.status_code != httpx.codes.OK:
                    source.response.read()
                    raise error_of(self._answer(source.response))
                self._reached = tail.opened = True
                for sse in source.iter_sse():
                    yield Frame(sse.event, sse.data, sse.id)
        except FOREIGN_ERRORS as error:
            self._raise(error, SILENCE_S)

    def transfer(self, step: Transfer[T]) -> T:
        """Send or receive a body of any size."""
        call = step.call
        try:
            request = self._request(call, step.source() if step.source is not None else None)
            response = self._http.send(request, stream=True)
            with closing(response):
                if step.sink is None or not response.is_success:
                    response.read()
                    return read_answer(self._answer(response), call.parse)
                self._reached = True
                for part in response.iter_raw(TRANSFER_BYTES):
                    step.sink(part)
        except FOREIGN_ERRORS as error:
            self._raise(error, call.answer_within_s)
        return call.parse(b"")

    def drive(self, flow: Flow[T]) -> T:
        """Carry out ``flow`` and return its result."""
        return driven(flow, self._carry_out)

    def _carry_out(self, step: Step) -> object:
        match step:
            case Call():
                return self.send(step)
            case Pause(seconds):
                time.sleep(seconds)
            case Transfer():
                return self.transfer(step)
            case Tell(callback, argument):
                callback(argument)
            case Ask(callback, arguments):
                return callback(*arguments)
            case Follow(tail, take):
                for event in self.follow(tail):
                    self.drive(take(event))
        return None


class AsyncLink(_LinkBase):
    """Carries out flows in the running event loop."""

    def __init__(self, config: Config, patience: Patience, transport: httpx.AsyncBaseTransport | None = None) -> None:
        super().__init__(config, patience)
        self._http = httpx.AsyncClient(
            base_url=config.url,
            headers=self._shared_headers,
            verify=self._verify(),
            trust_env=self._trust_env(),
            limits=KEPT_CONNECTIONS,
            transport=transport,
        )

    async def close(self) -> None:
        """Close all connections. Nothing on the server changes."""
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        """Send ``call`` once and read its answer."""
        try:
            response = await self._http.send(self._request(call))
        except FOREIGN_ERRORS as error:
            self._raise(error, call.answer_within_s)
        return read_answer(self._answer(response), call.parse)

    async def follow(self, tail: Tail) -> AsyncGenerator[Event, None]:
        """The events of ``tail``, over as many connections as it takes."""
        while not tail.done:
            try:
                async with aclosing(self._frames(tail)) as frames:
                    async for frame in frames:
                        event = tail.take(frame)
                        if event is not None:
                            yield event
                        if tail.done:
                            return
                pause_s = tail.lost(None)
            except ClocheError as error:
                pause_s = tail.lost(error)
            await asyncio.sleep(pause_s)

    async def _frames(self, tail: Tail) -> AsyncGenerator[Frame, None]:
        """The frames of one connection."""
        try:
            async with httpx_sse.aconnect_sse(
                self._http, timeout=_timeout(SILENCE_S), **_opening(tail, self._life_headers)
            ) as source:
                if source.response.status_code != httpx.codes.OK:
                    await source.response.aread()
                    raise error_of(self._answer(source.response))
                self._reached = tail.opened = True
                async with aclosing(source.aiter_sse()) as sses:
                    async for sse in sses:
                        yield Frame(sse.event, sse.data, sse.id)
        except FOREIGN_ERRORS as error:
            self._raise(error, SILENCE_S)

    async def transfer(self, step: Transfer[T]) -> T:
        """Send or receive a body of any size. Files of this machine are read and written in a thread."""
        call = step.call
        try:
            request = self._request(call, _in_thread(step.source()) if step.source is not None else None)
            response = await self._http.send(request, stream=True)
            async with aclosing(response):
                if step.sink is None or not response.is_success:
                    await response.aread()
                    return read_answer(self._answer(response), call.parse)
                self._reached = True
                async for part in response.aiter_raw(TRANSFER_BYTES):
                    await asyncio.to_thread(step.sink, part)
        except FOREIGN_ERRORS as error:
            self._raise(error, call.answer_within_s)
        return call.parse(b"")

    async def drive(self, flow: Flow[T]) -> T:
        """Carry out ``flow`` and return its result."""
        return await driven_awaiting(flow, self._carry_out)

    async def _carry_out(self, step: Step) -> object:
        match step:
            case Call():
                return await self.send(step)
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case Transfer():
                return await self.transfer(step)
            case Tell(callback, argument):
                await _settled(callback(argument))
            case Ask(callback, arguments):
                return await _settled(callback(*arguments))
            case Follow(tail, take):
                async with aclosing(self.follow(tail)) as events:
                    async for event in events:
                        await self.drive(take(event))
        return None


def _opening(tail: Tail, headers: dict[str, str]) -> dict[str, Any]:
    """How a stream is asked for, in httpx' words."""
    asked: dict[str, Any] = {"method": "GET", "url": tail.path, "params": tail.query or None, "headers": headers}
    if tail.body is not None:
        asked |= {"method": "POST", "content": tail.body, "headers": {**headers, "Content-Type": "application/json"}}
    return asked


async def _in_thread(source: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    while (part := await asyncio.to_thread(next, source, None)) is not None:
        yield part


async def _settled(value: object) -> object:
    """A callback may be a plain function or a coroutine function."""
    return await value if inspect.isawaitable(value) else value
