"""No error of httpx escapes."""

from __future__ import annotations

import asyncio
import inspect

import httpx
import httpx_sse
import pytest

from cloche import _calls
from cloche._config import Config
from cloche._foreign_errors import mapped
from cloche._link import AsyncLink, Link
from cloche._patience import Patience
from cloche._tail import Tail
from cloche.errors import ClocheError, ConnectionFailed, InvalidRequest, WaitTimeout

CONFIG = Config("http://127.0.0.1:1", "k", is_loopback=True)


def every_httpx_error() -> list[type[Exception]]:
    """Every exception class that httpx and httpx-sse export."""
    exported = [value for module in (httpx, httpx_sse) for value in vars(module).values()]
    return sorted(
        {value for value in exported if inspect.isclass(value) and issubclass(value, Exception)},
        key=lambda cls: cls.__name__,
    )


def instance(cls: type[Exception]) -> Exception:
    request = httpx.Request("GET", "http://x")
    if cls is httpx.HTTPStatusError:
        return cls("m", request=request, response=httpx.Response(500))  # type: ignore[call-arg]
    try:
        return cls("m")
    except TypeError:
        return cls()


@pytest.mark.parametrize("cls", every_httpx_error())
def test_every_error_of_httpx_becomes_one_of_cloche(cls: type[Exception]) -> None:
    def fail(_request: httpx.Request) -> httpx.Response:
        raise instance(cls)

    async def fail_async(request: httpx.Request) -> httpx.Response:
        return fail(request)

    async def awaited() -> None:
        link = AsyncLink(CONFIG, Patience(0), httpx.MockTransport(fail_async))
        with pytest.raises(ClocheError):
            await link.send(_calls.info())
        with pytest.raises(ClocheError):
            [event async for event in link.follow(Tail("/e", cursor=None, last_type=None, patience=Patience(0)))]

    link = Link(CONFIG, Patience(0), httpx.MockTransport(fail))
    with pytest.raises(ClocheError) as caught:
        link.send(_calls.info())
    assert isinstance(caught.value, ConnectionFailed | WaitTimeout | InvalidRequest)
    assert isinstance(caught.value.__cause__, cls)
    with pytest.raises(ClocheError):
        list(link.follow(Tail("/e", cursor=None, last_type=None, patience=Patience(0))))
    asyncio.run(awaited())


def test_it_is_said_whether_the_request_may_have_arrived() -> None:
    refused = mapped(httpx.ConnectError("refused"), url="u", reached_before=False, bound_s=1)
    broken = mapped(httpx.ReadError(""), url="u", reached_before=True, bound_s=1)
    assert (refused.details["sent"], broken.details["sent"]) == (False, True)
    assert "cloche serve" in (refused.hint or "")
    assert "ReadError" in broken.message


def test_silence_is_a_wait_timeout_with_its_bound() -> None:
    error = mapped(httpx.ReadTimeout("m"), url="u", reached_before=True, bound_s=30)
    assert isinstance(error, WaitTimeout)
    assert error.details["bound_s"] == 30
