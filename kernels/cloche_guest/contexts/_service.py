"""All contexts of the sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import zmq
from pydantic import JsonValue

from cloche.errors import ClocheError, ContextStartFailed, Gone, LimitReached, NotFound
from cloche.models import (
    CompleteReply,
    CompleteRequest,
    Context,
    ContextCreate,
    ContextLimits,
    InspectReply,
    InspectRequest,
    RunCreate,
    Variables,
)
from cloche.models.guest import VariablesSummary
from cloche_guest.children import Account, Children
from cloche_guest.clock import Clock
from cloche_guest.contexts._context import LiveContext
from cloche_guest.contexts._identity_change import IdentityChange
from cloche_guest.contexts._kernel_process import KernelSpec, KernelStartFailed
from cloche_guest.contexts._launcher import Launcher
from cloche_guest.contexts._preload import DATA_STACK, OWN_MODULE, wanted_modules
from cloche_guest.contexts._run import RunRecord
from cloche_guest.contexts._runs import new_id
from cloche_guest.contexts._spare import Spares
from cloche_guest.contexts._surroundings import Surroundings
from cloche_guest.latest_ids import LatestIds

MAX_CONTEXTS: Final = 64
"""A Python kernel holds some 50 MB; the sandbox's own memory limit usually ends earlier."""

MAX_REMEMBERED: Final = 1000
"""Ids of deleted contexts, so that they are `Gone` and not unknown."""

DEFAULT: Final = "default"
STOP_GRACE_S: Final = 2.0

DIGESTS_S: Final = 60.0
"""A GiB of arrays takes some 2 s."""

ADOPT_S: Final = 2.0
"""An idle kernel answers in a millisecond or two; hooks of the user may take longer."""

REST_S: Final = 0.05
"""Between two looks whether anything runs. The first cell of a context usually comes within a few milliseconds."""

MOST_LOOKS: Final = 200

log = logging.getLogger(__name__)


class ContextService:
    """Finds, makes and deletes contexts. One instance a guest."""

    def __init__(
        self,
        children: Children,
        environment: Callable[[], dict[str, str]],
        *,
        kernel_python: str,
        account: Account | None,
        workspace: str,
        runtime_dir: Path,
        clock: Clock,
        tell: Callable[[str, Mapping[str, JsonValue]], None] = lambda _type, _data: None,
    ) -> None:
        self._account = account
        self._workspace = workspace
        self._runtime_dir = runtime_dir
        self._zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        starts = asyncio.Semaphore(max(2, os.cpu_count() or 2))
        self._launcher = Launcher(children, environment, kernel_python, account)
        spare = KernelSpec("/", ContextLimits(), account, runtime_dir, "spare")
        self._spares = Spares(self._launcher, self._zmq, environment, spare)
        self._around = Surroundings(self._launcher, self._spares, self._zmq, environment, starts, tell, clock)
        self._contexts: OrderedDict[str, LiveContext] = OrderedDict()
        self._deleted = LatestIds(MAX_REMEMBERED)
        self._warming: asyncio.Task[None] | None = None
        self._adopting: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._contexts)

    def all(self) -> list[LiveContext]:
        """Newest first."""
        return list(reversed(self._contexts.values()))

    def get(self, context_id: str) -> LiveContext:
        """
        Raises:
            NotFound, Gone
        """
        context = self._contexts.get(context_id)
        if context is not None:
            return context
        details: dict[str, Any] = {"kind": "context", "id": context_id}
        if context_id in self._deleted:
            raise Gone(f"context {context_id} was deleted", details=details)
        raise NotFound(f"there is no context {context_id}", details=details)

    async def use(self, context_id: str) -> LiveContext:
        """`get`, but ``default`` is made on its first use. Returns when its first kernel answers.

        Raises:
            NotFound, Gone, ContextStartFailed, LimitReached
        """
        if context_id == DEFAULT and context_id not in self._contexts:
            return await self._create(DEFAULT, ContextCreate(cwd=self._workspace))
        context = self.get(context_id)
        if not context.started.done():
            await asyncio.shield(context.started)
        return context

    async def create(self, body: ContextCreate) -> LiveContext:
        """A new context; returns when its kernel answers. A create that fails leaves nothing behind.

        Raises:
            InvalidRequest, ContextStartFailed, LimitReached
        """
        return await self._create(new_id("ctx-"), body)

    async def delete(self, context_id: str) -> Context:
        """End a context with everything it started; returns what it was at the end."""
        context = self.get(context_id)
        self._forget(context_id)
        await context.delete()
        return context.to_model()

    async def restart(self, context: LiveContext) -> None:
        """
        Raises:
            InvalidRequest, ContextStartFailed
        """
        try:
            await context.restart()
        except KernelStartFailed as error:
            raise _typed(error) from error

    async def variables_summary(self, context: LiveContext) -> VariablesSummary:
        """The user's names with digests of their values."""
        reply = await context.ask("cloche_digests_request", {}, DIGESTS_S)
        return VariablesSummary.model_validate({"variables": reply["variables"], "truncated": reply["truncated"]})

    async def preload(self, modules: Sequence[str]) -> None:
        """Have new kernels begin with these modules imported, at the price of a process that keeps them."""
        own, used = await self._modules_in_use()
        await self._launcher.prepare([*wanted_modules(own or [OWN_MODULE], used), *modules])

    async def rehearse(self, body: RunCreate) -> list[RunRecord]:
        """Take what a first cell costs (page faults, after a restore most of all) in runs that leave no trace."""
        runs = await asyncio.gather(*(self._rehearse_one(context, body) for context in self._contexts.values()))
        return [run for run in runs if run is not None]

    async def _rehearse_one(self, context: LiveContext, body: RunCreate) -> RunRecord | None:
        try:
            return await context.rehearse(body)
        except ClocheError as error:
            log.info("context %s stays cold: %s", context.id, error)
            return None

    async def adopt(self, change: IdentityChange) -> None:
        """Tell all kernels that the sandbox is another one now. One that does not answer in `ADOPT_S` hears of it when it
        can; code that is stuck must not hold up the sandbox."""
        now = [context for context in self._contexts.values() if not context.will_adopt(change)]
        telling = {asyncio.create_task(context.adopt(change)): context.id for context in now}
        if not telling:
            return
        self._adopting |= telling.keys()
        for task in telling:
            task.add_done_callback(self._has_adopted)
        _, late = await asyncio.wait(telling, timeout=ADOPT_S)
        for task in late:
            log.warning("the kernel of %s has not taken on the new identity after %g s", telling[task], ADOPT_S)

    def _has_adopted(self, task: asyncio.Task[None]) -> None:
        self._adopting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a kernel keeps the environment of its former sandbox: %s", error)

    def renew_journals(self) -> None:
        """See `Journal.renew`."""
        for context in self._contexts.values():
            context.renew_journals()

    async def end_all(self) -> None:
        """End all contexts, politely; others can be made."""
        contexts = list(self._contexts.values())
        for context in contexts:
            self._forget(context.id)
        await asyncio.gather(self._spares.end(), *(context.delete(STOP_GRACE_S) for context in contexts))

    async def stop(self) -> None:
        """The end."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.gather(self._warming, return_exceptions=True)
        await self.end_all()
        await self._launcher.stop()
        self._zmq.destroy(linger=0)

    async def complete(self, context: LiveContext, body: CompleteRequest) -> CompleteReply:
        """Completions at the cursor."""
        reply = await context.ask("cloche_complete_request", _at_cursor(body))
        matches = [str(match) for match in reply["matches"]]
        kinds = reply.get("metadata", {}).get("_jupyter_types_experimental", [])
        types = [_kind(entry) for entry in kinds] if len(kinds) == len(matches) else [_kind(None) for _ in matches]
        return CompleteReply(
            matches=matches, cursor_start=reply["cursor_start"], cursor_end=reply["cursor_end"], types=types
        )

    async def inspect(self, context: LiveContext, body: InspectRequest) -> InspectReply:
        """Documentation of what is at the cursor."""
        content = _at_cursor(body) | {"detail_level": body.detail_level}
        reply = await context.ask("cloche_inspect_request", content)
        return InspectReply(found=bool(reply["found"]), data=reply["data"])

    async def variables(self, context: LiveContext) -> Variables:
        """The user's names."""
        reply = await context.ask("cloche_variables_request", {})
        return Variables(variables=reply["variables"], truncated=reply["truncated"])

    def _forget(self, context_id: str) -> None:
        del self._contexts[context_id]
        if context_id != DEFAULT:  # the default one can be used again
            self._deleted.add(context_id)

    async def _create(self, context_id: str, body: ContextCreate) -> LiveContext:
        if len(self._contexts) >= MAX_CONTEXTS:
            raise LimitReached(
                f"this sandbox has {MAX_CONTEXTS} contexts already", hint="delete one", details={"limit": MAX_CONTEXTS}
            )
        spec = KernelSpec(body.cwd, body.limits, self._account, self._runtime_dir, context_id)
        context = self._contexts[context_id] = LiveContext(context_id, body, spec, self._around)
        try:
            await asyncio.shield(context.started)
        except ClocheError as error:
            if self._contexts.get(context_id) is context:
                del self._contexts[context_id]
                await context.delete()
            raise _typed(error) from error
        self._warm_up()
        return context

    def _warm_up(self) -> None:
        """From the second context on there is a zygote for the next ones, which learns what kernels here use, and a spare."""
        if len(self._contexts) > 1 and (self._warming is None or self._warming.done()):
            self._warming = asyncio.create_task(self._prepare_for_more(), name="zygote and spare")

    async def _prepare_for_more(self) -> None:
        await self._come_to_rest()
        own, used = await self._modules_in_use()
        await self._launcher.prepare(wanted_modules(own, used))
        await self._come_to_rest()
        await self._spares.make()

    async def _come_to_rest(self) -> None:
        """No cell runs, as a rule: to fork a large process takes a core for 0.2 s on gVisor."""
        for _ in range(MOST_LOOKS):
            await asyncio.sleep(REST_S)
            if not any(context.works for context in self._contexts.values()):
                return

    async def _modules_in_use(self) -> tuple[list[str], set[str]]:
        """What kernels import by themselves, and what of the data stack they were seen to use."""
        own: list[str] = []
        used: set[str] = set()
        for context in list(self._contexts.values()):
            with contextlib.suppress(ClocheError):  # its kernel is stuck or gone; another tells the same
                reply = await context.ask("cloche_modules_request", {"ask": DATA_STACK})
                own = own or reply["own"]
                used.update(reply["asked"])
        return own, used


def _typed(error: ClocheError) -> ClocheError:
    """Inner failures as errors with a code."""
    if isinstance(error, KernelStartFailed):
        return ContextStartFailed(error.message, details={"failure": error.failure.model_dump(mode="json")})
    return error


def _at_cursor(body: CompleteRequest) -> dict[str, Any]:
    position = len(body.code) if body.cursor_pos is None else min(body.cursor_pos, len(body.code))
    return {"code": body.code, "cursor_pos": position}


def _kind(entry: Any) -> str | None:
    kind = entry.get("type") if isinstance(entry, dict) else None
    return kind if isinstance(kind, str) else None
