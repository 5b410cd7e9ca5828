"""Flows: what the client does, without doing it.

A flow is a generator. It yields steps (a call to send, a pause, a callback to tell, a stream to follow), is sent the
outcome of each, and returns its result; a failed step is thrown into it. So every rule of the client (when to try
again, when to stop waiting, what an answer means) is written once, tested without sockets, and runs the same under
`Sandbox` and `AsyncSandbox`: `blocking` and `awaiting` make a method of a flow, `cloche._link` carries it out.

| step | outcome |
|---|---|
| `Call` | the parsed answer |
| `Pause` | None, after so many seconds |
| `Tell` | None, after the callback returned (and was awaited, where it is a coroutine function under `AsyncSandbox`) |
| `Ask` | what the callback answered |
| `Follow` | None, at the end of the stream |
| `Transfer` | the parsed answer |
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from cloche._calls import Call, sandbox
from cloche._patience import Patience
from cloche._tail import WAKES_UP, Tail, rests
from cloche.errors import ClocheError, ConnectionFailed, SandboxNotRunning, SandboxUnreachable, WaitTimeout
from cloche.models import Event, Sandbox, SandboxState

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S")
St = TypeVar("St")


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Tell:
    """Call ``callback`` with ``argument``."""

    callback: Callable[[Any], object]
    argument: object


@dataclass(frozen=True, slots=True)
class Ask:
    """Call ``callback`` with ``arguments`` for its answer."""

    callback: Callable[..., str | Awaitable[str]]
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Follow:
    """Read ``tail`` to its end and carry out ``take(event)`` for each event."""

    tail: Tail
    take: Callable[[Event], Flow[None]]


@dataclass(frozen=True, slots=True)
class Transfer(Generic[T]):
    """Send ``call`` once with a body of any size: from ``source``, or to ``sink``. Both are called outside any event loop."""

    call: Call[T]
    source: Callable[[], Iterator[bytes]] | None = None
    sink: Callable[[bytes], object] | None = None


Step: TypeAlias = "Call[Any] | Pause | Tell | Ask | Follow | Transfer[Any]"

# The outcome of a step depends on the step, which the generator type cannot say. `Any` stays within this file: flows
# get typed values from `send` and `ask`.
Flow: TypeAlias = Generator[Step, Any, T]


def send(call: Call[T]) -> Flow[T]:
    """Send ``call`` once."""
    return cast(T, (yield call))


def transfer(step: Transfer[T]) -> Flow[T]:
    """Carry out ``step``."""
    return cast(T, (yield step))


def ask(callback: Callable[..., str | Awaitable[str]], *arguments: object) -> Flow[str]:
    """What ``callback`` answers."""
    return cast(str, (yield Ask(callback, arguments)))


def send_patiently(call: Call[T], patience: Patience) -> Flow[T]:
    """Send ``call``, and again while the connection is lost and repeating is harmless.

    :raises ConnectionFailed: the server was not reached within ``patience``, or never was by this client (then it is
        more likely the wrong address than an outage, and is said at once).
    :raises SandboxNotRunning: the sandbox came to rest under this call, and did not run again within ``patience``.
    """
    delays = patience.delays()
    while True:
        try:
            return (yield from send(call))
        except (ConnectionFailed, WaitTimeout, SandboxUnreachable, SandboxNotRunning) as error:
            delay = next(delays, None) if may_repeat(call, error) else None
            if delay is None:
                raise
            failure = error
        yield Pause(delay)
        if isinstance(failure, SandboxNotRunning):
            yield from _until_it_runs(call, failure, delays)


def may_repeat(call: Call[object], error: ClocheError) -> bool:
    """Whether sending ``call`` again can help and cannot harm.

    A sandbox that is saved, paused or put to rest has its connections cut; the call itself may have been done.
    """
    if isinstance(error, SandboxUnreachable | SandboxNotRunning):
        return call.repeatable and error.details.get("cut") is True
    reached_before = error.details.get("reached_before") is True
    never_sent = error.details.get("sent") is False
    return reached_before and (call.repeatable or never_sent)


def _until_it_runs(call: Call[object], failure: SandboxNotRunning, delays: Iterator[float]) -> Flow[None]:
    """Look, which does not wake it: whoever put it to rest did not mean to wait for this call.

    :raises SandboxNotRunning: ``failure``, when it does not run in time, or never will with what was begun in it.
    """
    look = _look_at_sandbox_of(call)
    while rests(failure):
        state = (yield from send(look)).state
        if state is SandboxState.RUNNING:
            return
        delay = next(delays, None) if state in WAKES_UP else None
        if delay is None:
            break
        yield Pause(delay)
    raise failure


def _look_at_sandbox_of(call: Call[object]) -> Call[Sandbox]:
    _, version, kind, sandbox_id = call.path.split("/")[:4]
    assert (version, kind) == ("v1", "sandboxes"), call.path  # nothing else is cut by what happens to a sandbox
    return sandbox(sandbox_id)


def driven(flow: Generator[St, Any, T], carry_out: Callable[[St], object]) -> T:
    """The result of ``flow``, whose steps are done by ``carry_out``. Steps of any kind: `cloche._socket` has its own."""
    outcome: object = None
    failure: Exception | None = None
    while True:
        try:
            step = flow.send(outcome) if failure is None else flow.throw(failure)
        except StopIteration as end:
            return cast(T, end.value)
        outcome, failure = None, None
        try:
            outcome = carry_out(step)
        except Exception as error:  # given to the flow, which raises what it does not handle
            failure = error


async def driven_awaiting(flow: Generator[St, Any, T], carry_out: Callable[[St], Awaitable[object]]) -> T:
    """`driven`, in the running event loop."""
    outcome: object = None
    failure: Exception | None = None
    while True:
        try:
            step = flow.send(outcome) if failure is None else flow.throw(failure)
        except StopIteration as end:
            return cast(T, end.value)
        outcome, failure = None, None
        try:
            outcome = await carry_out(step)
        except Exception as error:  # given to the flow, which raises what it does not handle
            failure = error


class Driver(Protocol):
    """What carries out flows by blocking: `cloche._link.Link`."""

    def drive(self, flow: Flow[T]) -> T: ...


class AsyncDriver(Protocol):
    """What carries out flows in an event loop: `cloche._link.AsyncLink`."""

    async def drive(self, flow: Flow[T]) -> T: ...


def blocking(flow: Callable[Concatenate[S, P], Flow[T]]) -> Callable[Concatenate[S, P], T]:
    """``flow`` (a method of a class with a ``_link``) as a method that blocks until it is done."""

    @functools.wraps(flow)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast(Driver, self._link).drive(flow(self, *args, **kwargs))  # type: ignore[attr-defined]

    return _renamed(method, flow)


def awaiting(flow: Callable[Concatenate[S, P], Flow[T]]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """``flow`` (a method of a class with a ``_link``) as a coroutine method."""

    @functools.wraps(flow)
    async def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await cast(AsyncDriver, self._link).drive(flow(self, *args, **kwargs))  # type: ignore[attr-defined]

    return _renamed(method, flow)


F = TypeVar("F", bound=Callable[..., Any])


def _renamed(method: F, flow: Callable[..., Any]) -> F:
    """Show the method in ``help()`` as users call it: public name, and the type it returns instead of ``Flow[...]``."""
    method.__name__ = flow.__name__.removeprefix("_")
    method.__qualname__ = flow.__qualname__.replace("Flows._", ".").replace("..", ".")
    returns = method.__annotations__.get("return")
    if isinstance(returns, str) and returns.startswith("Flow["):
        method.__annotations__ = {**method.__annotations__, "return": returns[len("Flow[") : -1]}
    method.__signature__ = inspect.signature(flow).replace(return_annotation=method.__annotations__.get("return"))  # type: ignore[attr-defined]
    return method
