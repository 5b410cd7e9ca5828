"""The spare: one kernel made ahead, so that the next context need not wait for one.

* There is none without a zygote, so none in a sandbox with one kernel.
* It is forked like any other kernel, has done one cell that left no trace, and waits. It belongs to no context: it is no
  work, and no list has it. An order makes it a context's kernel; what it refuses, and when, is in `kernel_side/_spare.py`.
* A context with limits does not get it, nor one whose environment differs in what counts when a kernel starts.
* It goes with its zygote, and when that has imported more. One that dies is not replaced before somebody asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import zmq

from cloche.errors import ClocheError
from cloche.models import ContextLimits
from cloche_guest.contexts._kernel import Kernel, OnMessage, start_kernel
from cloche_guest.contexts._kernel_process import KernelSpec, kernel_env, new_mark, refused_cwd
from cloche_guest.contexts._launcher import Edition, Launcher
from cloche_guest.contexts._preload import differs_at_start
from cloche_guest.contexts._zygote import CannotFork

ORDER_S: Final = 5.0
"""It takes 3 ms."""

PATIENCE_S: Final = 1.0
"""One is made in 0.2 s on gVisor."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """`env`: what it was made with."""

    kernel: Kernel
    env: Mapping[str, str]
    edition: Edition | None


class Spares:
    """At most one. `spec` is how it begins, but for what an order brings."""

    def __init__(
        self,
        launcher: Launcher,
        zmq_context: zmq.Context[zmq.Socket[bytes]],
        environment: Callable[[], dict[str, str]],
        spec: KernelSpec,
    ) -> None:
        self._launcher = launcher
        self._zmq = zmq_context
        self._environment = environment
        self._spec = spec
        self._waiting: _Waiting | None = None
        self._turn = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    async def make(self) -> None:
        """Have one; returns when it waits, or cannot be made."""
        async with self._turn:
            if self._waiting is not None and self._waiting.edition != self._launcher.edition:
                await self._throw_away()
            if self._waiting is None:
                await self._make()

    async def take(
        self, spec: KernelSpec, env: Mapping[str, str], generation: int, on_message: OnMessage
    ) -> Kernel | None:
        """The kernel of a context; None: it must be made another way. Waits for one that is being made, but not for long.

        Raises:
            InvalidRequest: `cwd` cannot be used.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self._turn.acquire()
        except TimeoutError:
            return None
        try:
            return await self._take(spec, env, generation, on_message)
        finally:
            self._turn.release()

    async def end(self) -> None:
        """End the one there is. Another may be made."""
        async with self._turn:
            await self._throw_away()

    async def _take(
        self, spec: KernelSpec, env: Mapping[str, str], generation: int, on_message: OnMessage
    ) -> Kernel | None:
        spare = self._waiting
        if spare is None or spec.limits != ContextLimits() or differs_at_start(spare.env, env):
            return None
        if spare.edition == self._launcher.edition and await self._order(spare.kernel, spec, env, generation):
            self._waiting = None
            spare.kernel.become(on_message)
            return spare.kernel
        await self._throw_away()
        return None

    async def _make(self) -> None:
        env, edition = self._environment(), self._launcher.edition
        try:
            kernel = await start_kernel(
                self._spec, self._launcher.fork_spare, env, 0, context=self._zmq, on_message=_ignore
            )
        except (CannotFork, ClocheError) as error:
            log.info("no kernel is made ahead: %s", error)
            return
        self._waiting = spare = _Waiting(kernel, env, edition)
        kernel.process.exited.add_done_callback(lambda _: self._has_exited(spare))
        try:
            await kernel.warm_up()
        except ClocheError as error:
            log.info("the kernel that was made ahead is given up: %s", error)
            await self._throw_away()

    async def _order(self, kernel: Kernel, spec: KernelSpec, env: Mapping[str, str], generation: int) -> bool:
        """False: it is of no use any more."""
        mark = new_mark(spec, generation)
        shown = [str(kernel.process.connection_file), spec.context_id]
        order = {"cwd": spec.cwd, "env": kernel_env(spec, env, mark), "shown": shown}
        try:
            answer = await kernel.ask("shell", "cloche_order_request", order, ORDER_S)
        except ClocheError as error:
            answer = {"refused": error.message}
        except asyncio.CancelledError:
            await self._throw_away()  # it may have become what nobody wants any more
            raise
        if "cwd" in answer:
            raise refused_cwd(spec.cwd, answer["cwd"])
        if "refused" in answer:
            log.info("the kernel that was made ahead is given up: %s", answer["refused"])
            return False
        kernel.process.begin(mark)
        return True

    async def _throw_away(self) -> None:
        spare, self._waiting = self._waiting, None
        if spare is not None:
            await spare.kernel.end()

    def _has_exited(self, spare: _Waiting) -> None:
        """Its sockets must not go on looking for it."""
        if self._waiting is spare:
            self._waiting = None
            task = asyncio.create_task(spare.kernel.end())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


def _ignore(_channel: object, _message: object) -> None:
    """It says nothing that anybody wants to know."""
