"""One change of a sandbox at a time: snapshot, fork, pause, suspend, stop, resume, restore, claim, delete.

A second one waits, bounded. Only delete does not wait: it ends what is under way, which sees its own task cancelled and
must leave the sandbox in a state from which `destroy` gets rid of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from cloche.errors import Conflict
from cloche_server.sandboxes._registry import gone

T = TypeVar("T")

WAIT_S: Final = 60.0
"""For the change before: the longest ordinary one is a resume of a large sandbox on a busy machine."""

OVERRIDE_S: Final = 15.0
"""That a cancelled change has for clearing up."""


@dataclass(slots=True, eq=False)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    what: str = ""
    task: asyncio.Task[Any] | None = None
    overridden: bool = False
    deleting: bool = False


class Changes:
    """Of all sandboxes. Tasks begun with `run` are its own, and `close` waits for them."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def under_way(self, sandbox_id: str) -> str | None:
        """What is being done with it, in one word."""
        turn = self._turns.get(sandbox_id)
        return turn.what if turn is not None and turn.lock.locked() else None

    @asynccontextmanager
    async def hold(self, sandbox_id: str, what: str, bound_s: float = WAIT_S) -> AsyncIterator[None]:
        """``what``: a word for messages, such as "suspend". The body may be cancelled by a delete; that is `Gone` outside.
        Look at the row again inside: it may have changed while this waited. Not reentrant: `SandboxService.pause`,
        ``suspend``, ``stop`` and ``resume`` take it by themselves.

        Raises:
            Conflict: the change before did not end within ``bound_s``.
        """
        async with self._turn(sandbox_id) as turn:
            await _wait_turn(turn, sandbox_id, bound_s)
            try:
                if turn.deleting:
                    raise _busy(sandbox_id, turn)
                turn.what, turn.task, turn.overridden = what, asyncio.current_task(), False
                yield
            except asyncio.CancelledError:
                if not turn.overridden or turn.task is None:
                    raise
                turn.task.uncancel()
                raise gone(sandbox_id) from None
            finally:
                turn.task = None
                turn.lock.release()

    @asynccontextmanager
    async def override(self, sandbox_id: str) -> AsyncIterator[None]:
        """For delete: what is under way is cancelled, what waits is refused."""
        async with self._turn(sandbox_id) as turn:
            turn.deleting = True
            if turn.task is not None:
                turn.overridden = True
                turn.task.cancel()
            got = await _acquired(turn.lock, OVERRIDE_S)
            turn.what = "delete"
            try:
                yield
            finally:
                turn.deleting = False
                if got:
                    turn.lock.release()

    async def settled(self, sandbox_id: str, bound_s: float = WAIT_S) -> None:
        """Returns when nothing is under way. `Conflict` after ``bound_s``."""
        async with self._turn(sandbox_id) as turn:
            await _wait_turn(turn, sandbox_id, bound_s)
            turn.lock.release()

    async def run(self, sandbox_id: str, what: str, work: Callable[[], Awaitable[T]], bound_s: float = WAIT_S) -> T:
        """``work`` while holding the sandbox, in a task of its own: a caller that goes away stops nothing."""

        async def held() -> T:
            async with self.hold(sandbox_id, what, bound_s):
                return await work()

        task = asyncio.create_task(held(), name=f"{what} {sandbox_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(retrieve)
        return await asyncio.shield(task)

    async def close(self, bound_s: float) -> None:
        """Waits for what is under way."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=bound_s)

    @asynccontextmanager
    async def _turn(self, sandbox_id: str) -> AsyncIterator[_Turn]:
        turn = self._turns.setdefault(sandbox_id, _Turn())
        turn.waiting += 1
        try:
            yield turn
        finally:
            turn.waiting -= 1
            if not turn.waiting:
                self._turns.pop(sandbox_id, None)


async def _wait_turn(turn: _Turn, sandbox_id: str, bound_s: float) -> None:
    if not await _acquired(turn.lock, bound_s):
        raise _busy(sandbox_id, turn)


async def _acquired(lock: asyncio.Lock, bound_s: float) -> bool:
    try:
        async with asyncio.timeout(bound_s):
            return await lock.acquire()
    except TimeoutError:
        return False


def _busy(sandbox_id: str, turn: _Turn) -> Conflict:
    what = "delete" if turn.deleting else turn.what
    return Conflict(
        f"another change of sandbox {sandbox_id} is under way: {what}",
        hint="try again when it is done",
        details={"kind": "change", "id": sandbox_id, "what": what},
    )


def retrieve(task: asyncio.Task[Any]) -> None:
    """The caller may be gone; an error it did not fetch is in the log already."""
    if not task.cancelled():
        task.exception()
