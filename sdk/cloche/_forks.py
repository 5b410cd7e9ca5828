"""What a fork gave: a sandbox for each child, or the error that kept it from being one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar, overload

from pydantic import ValidationError

from cloche import models
from cloche.errors import ClocheError, ErrorBody, InternalError, error_from_body


class Leavable(Protocol):
    """A `Sandbox`: leaving deletes one that was made here."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class AsyncLeavable(Protocol):
    """An `AsyncSandbox`."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


H = TypeVar("H")
L = TypeVar("L", bound=Leavable)
A = TypeVar("A", bound=AsyncLeavable)


class ForkChildren(Sequence[H], Generic[H]):
    """The children in their order: ``result[2]`` is the third. One that failed raises its error when it is taken."""

    def __init__(self, children: Sequence[H | ClocheError], paused_s: float, ready_s: float) -> None:
        self.children = tuple(children)
        """A handle, or the error, for each."""
        self.paused_s = paused_s
        """How long the source stood still."""
        self.ready_s = ready_s
        """Until the last child answered."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self.sandboxes)} of {len(self)} children>"

    @property
    def sandboxes(self) -> list[H]:
        """The children there are."""
        return [child for child in self.children if not isinstance(child, ClocheError)]

    @property
    def errors(self) -> Mapping[int, ClocheError]:
        """Why the others failed, by their place."""
        return {place: child for place, child in enumerate(self.children) if isinstance(child, ClocheError)}

    def raise_for_errors(self) -> Self:
        """This, unless a child failed: then the error of the first that did."""
        for error in self.errors.values():
            raise error
        return self

    def __len__(self) -> int:
        return len(self.children)

    @overload
    def __getitem__(self, place: int) -> H: ...
    @overload
    def __getitem__(self, place: slice) -> list[H]: ...
    def __getitem__(self, place: int | slice) -> H | list[H]:
        if isinstance(place, slice):
            return [_there(child) for child in self.children[place]]
        return _there(self.children[place])

    def __iter__(self) -> Iterator[H]:
        return (_there(child) for child in self.children)


class ForkResult(ForkChildren[L]):
    """What `Sandbox.fork` gave. As a context manager: leaving deletes the children."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failures: list[ClocheError] = []
        for child in self.sandboxes:
            try:
                child.__exit__(kind, error, trace)
            except ClocheError as failure:
                failures.append(failure)
        _raise_first(failures)


class AsyncForkResult(ForkChildren[A]):
    """What `AsyncSandbox.fork` gave. As an async context manager: leaving deletes the children."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ends = (child.__aexit__(kind, error, trace) for child in self.sandboxes)
        outcomes = await asyncio.gather(*ends, return_exceptions=True)
        _raise_first([outcome for outcome in outcomes if isinstance(outcome, BaseException)])


def outcome_of(child: models.ForkChild) -> models.Sandbox | ClocheError:
    """What has become of ``child``."""
    if child.sandbox is not None:
        return child.sandbox
    try:
        return error_from_body(ErrorBody.model_validate(child.error, extra="ignore"))
    except ValidationError:
        return InternalError(f"child {child.index} is not there, and the server does not say why")


def _there(child: H | ClocheError) -> H:
    if isinstance(child, ClocheError):
        raise child
    return child


def _raise_first(failures: Sequence[BaseException]) -> None:
    for failure in failures:
        raise failure
