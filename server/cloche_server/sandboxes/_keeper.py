"""Keeps every sandbox' lifecycle policy: sleeps until the next deadline of any, looks at that one, and acts.

Nobody is polled: a guest is asked when its sandbox would be idle by what the server knows, and a call that goes into a
sandbox only moves its deadline. What fails is tried again after a growing delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from cloche.errors import ClocheError, Gone, SandboxUnreachable
from cloche.models import PolicyAction
from cloche.models.guest import Activity
from cloche_server.lifecycle.policy import SECOND_US, Act, Ask, Wait, next_step, retry_delay_s
from cloche_server.relay import GuestCall, call_guest
from cloche_server.sandboxes._journal_events import tell_policy_failed
from cloche_server.sandboxes._live import Live
from cloche_server.sandboxes._registry import Registry
from cloche_server.state import SandboxRow

_LOG: Final = logging.getLogger("cloche.keeper")

ACTIVITY: Final = GuestCall("GET", "/v1/activity", statuses={200}, bound_s=10, looks=True)

MAX_LOOKS: Final = 8
"""At a time: suspending writes memory to disk, and hundreds may be idle at once after a weekend."""

PASSING_FAILURES: Final = 3

LONGEST_SLEEP_S: Final = 3600.0
"""The clock of the machine may be set."""


class Acts(Protocol):
    """`SandboxService`: what a policy may do."""

    async def suspend(self, sandbox_id: str, *, reason: str, idle_since_us: int | None) -> object: ...
    async def stop(self, sandbox_id: str, *, reason: str, idle_since_us: int | None) -> object: ...
    async def end(self, sandbox_id: str) -> object: ...


class Keeper:
    """`start` it, `close` it. `changed` is told of every change of a row."""

    def __init__(
        self, registry: Registry, acts: Acts, ask: Callable[[Live], Awaitable[Activity]] | None = None
    ) -> None:
        self._registry = registry
        self._acts = acts
        self._ask = ask or ask_guest
        self._due: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._poked = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(MAX_LOOKS)

    def start(self) -> None:
        for row in self._registry.store.all_kept():
            self._plan(row)
        self._loop = asyncio.create_task(self._run(), name="lifecycle keeper")

    async def close(self) -> None:
        """Looks under way are abandoned; a change that began goes on."""
        tasks = [*self._looks.values(), *([self._loop] if self._loop is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def changed(self, sandbox_id: str) -> None:
        """The row is another now. While it is looked at, that may be our own doing; it is planned anew afterwards."""
        if sandbox_id in self._looks:
            return
        self._failures.pop(sandbox_id, None)
        row = self._registry.row(sandbox_id)
        if row is not None:
            self._plan(row)

    def _plan(self, row: SandboxRow) -> None:
        now = self._registry.clock()
        step = next_step(row, now)
        due = step.until_us if isinstance(step, Wait) else now
        if due is None:
            self._due.pop(row.id, None)
        else:
            self._due[row.id] = due
            self._poked.set()

    async def _run(self) -> None:
        while True:
            self._poked.clear()
            now = self._registry.clock()
            for sandbox_id in [each for each, due in self._due.items() if due <= now and each not in self._looks]:
                self._begin_look(sandbox_id)
            waiting = [due for each, due in self._due.items() if each not in self._looks]
            sleep_s = min(LONGEST_SLEEP_S, (min(waiting) - now) / SECOND_US) if waiting else LONGEST_SLEEP_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, sleep_s)):
                    await self._poked.wait()

    def _begin_look(self, sandbox_id: str) -> None:
        task = asyncio.create_task(self._look(sandbox_id), name=f"look at {sandbox_id}")
        self._looks[sandbox_id] = task
        task.add_done_callback(lambda _: self._looked(sandbox_id))

    def _looked(self, sandbox_id: str) -> None:
        self._looks.pop(sandbox_id, None)
        self._poked.set()
        if sandbox_id not in self._failures and (row := self._registry.row(sandbox_id)) is not None:
            self._plan(row)

    async def _look(self, sandbox_id: str) -> None:
        async with self._room:
            try:
                await self._decide(sandbox_id)
            except Gone:
                self._due.pop(sandbox_id, None)
            except Exception as error:
                await self._tell(sandbox_id, error, self._put_off(sandbox_id, error))

    async def _decide(self, sandbox_id: str) -> None:
        row = self._registry.known(sandbox_id)
        step = next_step(row, self._registry.clock())
        if isinstance(step, Ask):
            live = self._registry.live.get(sandbox_id)
            if live is not None:
                await self._hear(live)
            row = self._registry.known(sandbox_id)
            step = next_step(row, self._registry.clock(), asked=live is not None)
        if isinstance(step, Act):
            await self._act(row, step)
        self._failures.pop(sandbox_id, None)

    async def _hear(self, live: Live) -> None:
        """Calls under way are work, too: an upload may take an hour. Nothing was done in one that was not told yet who it
        is."""
        if live.row.known_as is not None:
            return
        if live.uplink.pool.working:
            live.active_us = self._registry.clock()
            return
        activity = await self._ask(live)
        seen_us = self._registry.clock() - (0 if activity.busy else int(activity.idle_s * SECOND_US))
        live.active_us = max(live.active_us, seen_us)

    async def _act(self, row: SandboxRow, act: Act) -> None:
        _LOG.info("policy", extra={"sandbox_id": row.id, "action": act.action.value, "why": act.why})
        since_us = row.active_us if act.why == "idle_timeout" else None
        match act.action:
            case PolicyAction.SUSPEND:
                await self._acts.suspend(row.id, reason=act.why, idle_since_us=since_us)
            case PolicyAction.STOP:
                await self._acts.stop(row.id, reason=act.why, idle_since_us=since_us)
            case PolicyAction.DELETE:
                await self._acts.end(row.id)
            case PolicyAction.NOTHING:
                return

    async def _tell(self, sandbox_id: str, error: Exception, again_in_s: float) -> None:
        """Who watches the sandbox sees it, too. A guest that could not even be asked cannot be told."""
        live = self._registry.live.get(sandbox_id)
        if live is None:
            return
        step = next_step(live.row, self._registry.clock(), asked=True)
        if isinstance(step, Act):
            await tell_policy_failed(live, step.action.value, step.why, error, again_in_s)

    def _put_off(self, sandbox_id: str, error: Exception) -> float:
        """Returns after how many seconds it is tried again."""
        failures = self._failures.get(sandbox_id, 0) + 1
        self._failures[sandbox_id] = failures
        delay_s = retry_delay_s(failures)
        self._due[sandbox_id] = self._registry.clock() + int(delay_s * SECOND_US)
        _LOG.log(
            _level(error, failures),
            "a policy could not be kept, and will be tried again",
            extra={"sandbox_id": sandbox_id, "why": str(error), "again_in_s": delay_s},
            exc_info=None if isinstance(error, ClocheError) else error,
        )
        return delay_s


def _level(error: Exception, failures: int) -> int:
    """A guest that cannot be asked is most often one that is being deleted or saved just now."""
    passing = isinstance(error, SandboxUnreachable) and failures < PASSING_FAILURES
    return logging.INFO if passing else logging.WARNING


async def ask_guest(live: Live) -> Activity:
    """Looking neither wakes nor counts. Raises what `call_guest` does, `ValueError` for nonsense."""
    answer = await call_guest(live.uplink.pool, ACTIVITY, 65_536)
    try:
        return Activity.model_validate_json(await answer.whole(65_536))
    finally:
        answer.close()
