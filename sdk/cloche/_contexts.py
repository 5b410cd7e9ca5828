"""The contexts of one sandbox: make, find and list them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict, Unpack

from cloche import _calls, models
from cloche._answers import built
from cloche._context import AsyncContext, Context
from cloche._flow import send, send_patiently
from cloche._link import AsyncLink, Link
from cloche.models import ContextCreate, ContextLimits

DEFAULT_CONTEXT: Final = "default"
"""The context every sandbox has from its first use on."""


class ContextOptions(TypedDict, total=False):
    """What a new context is to be; see `cloche.models.ContextCreate`."""

    language: str | None
    name: str | None
    cwd: str | None
    env: Mapping[str, str] | None
    limits: ContextLimits | Mapping[str, int] | None
    restart_policy: str | None
    interrupt_grace_s: float | None


class Contexts:
    """The contexts of one sandbox."""

    def __init__(self, link: Link, sandbox_id: str) -> None:
        self._link = link
        self._sandbox_id = sandbox_id

    @property
    def default(self) -> Context:
        """The context that `Sandbox.run` uses. Its kernel starts with its first use."""
        return Context(self._link, self._sandbox_id, DEFAULT_CONTEXT)

    def create(self, **options: Unpack[ContextOptions]) -> Context:
        """Start a new kernel and return when it answers. Options as in `cloche.models.ContextCreate`."""
        info = self._link.drive(send(_calls.create_context(self._sandbox_id, built(ContextCreate, **options))))
        return self._handle(info)

    def get(self, context_id: str) -> Context:
        """The context with this id.

        :raises NotFound: there is none.
        """
        path = _calls.context_path(self._sandbox_id, context_id)
        return self._handle(self._link.drive(send_patiently(_calls.context(path), self._link.patience)))

    def list(self) -> list[Context]:
        """All contexts; the default one is among them once it was used."""
        call = _calls.contexts(self._sandbox_id)
        page = self._link.drive(send_patiently(call, self._link.patience))
        return [self._handle(info) for info in page.items]

    def _handle(self, info: models.Context) -> Context:
        return Context(self._link, self._sandbox_id, info.id, info)


class AsyncContexts:
    """The contexts of one sandbox."""

    def __init__(self, link: AsyncLink, sandbox_id: str) -> None:
        self._link = link
        self._sandbox_id = sandbox_id

    @property
    def default(self) -> AsyncContext:
        """The context that `AsyncSandbox.run` uses. Its kernel starts with its first use."""
        return AsyncContext(self._link, self._sandbox_id, DEFAULT_CONTEXT)

    async def create(self, **options: Unpack[ContextOptions]) -> AsyncContext:
        """Start a new kernel and return when it answers. Options as in `cloche.models.ContextCreate`."""
        info = await self._link.drive(send(_calls.create_context(self._sandbox_id, built(ContextCreate, **options))))
        return self._handle(info)

    async def get(self, context_id: str) -> AsyncContext:
        """The context with this id.

        :raises NotFound: there is none.
        """
        path = _calls.context_path(self._sandbox_id, context_id)
        return self._handle(await self._link.drive(send_patiently(_calls.context(path), self._link.patience)))

    async def list(self) -> list[AsyncContext]:
        """All contexts; the default one is among them once it was used."""
        call = _calls.contexts(self._sandbox_id)
        page = await self._link.drive(send_patiently(call, self._link.patience))
        return [self._handle(info) for info in page.items]

    def _handle(self, info: models.Context) -> AsyncContext:
        return AsyncContext(self._link, self._sandbox_id, info.id, info)
