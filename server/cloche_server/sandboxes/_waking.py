"""Waking a sandbox: by request, or because a call wants to go into it. Once, however many ask at the same time.

What was saved is kept until a guest that came out of it has answered. So a wake that fails changes nothing: the sandbox
is suspended or stopped as before, and the next call tries again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cloche.errors import LimitReached, SandboxNotRunning, SandboxUnreachable, Stale
from cloche.models import SandboxState
from cloche_server.auth import hash_secret
from cloche_server.ids import new_uplink_token, next_life, same_memory
from cloche_server.lifecycle import TRANSIENT, Event, next_state
from cloche_server.lifecycle.policy import is_over
from cloche_server.sandboxes._binding import Binding
from cloche_server.sandboxes._changes import WAIT_S, Changes, retrieve
from cloche_server.sandboxes._failure import ASLEEP, not_running
from cloche_server.sandboxes._journal_events import tell_state
from cloche_server.sandboxes._live import Live
from cloche_server.sandboxes._registry import Registry, gone
from cloche_server.sandboxes._saved import SavedIdentity
from cloche_server.sandboxes._seams import Volumes
from cloche_server.sandboxes._start import Life, Source, start_sandbox
from cloche_server.sandboxes._watching import Watching
from cloche_server.state import SandboxRow

_LOG: Final = logging.getLogger("cloche.sandboxes")

_S = SandboxState

MAX_TURNS: Final = 4
"""A call that finds the sandbox changed again, so often in a row, is told so."""


class Waking:
    """See the module's words."""

    def __init__(
        self, registry: Registry, changes: Changes, watching: Watching, binding: Binding, volumes: Volumes
    ) -> None:
        self._registry = registry
        self._changes = changes
        self._watching = watching
        self._binding = binding
        self._volumes = volumes
        self._waking: dict[str, asyncio.Task[SandboxRow]] = {}

    async def resume(self, sandbox_id: str) -> SandboxRow:
        """Running, from paused, suspended or stopped; at once when it runs already.

        Raises:
            SandboxNotRunning: it cannot be woken: it failed, or its lifetime is over.
            SandboxStartFailed: the runtime could not; what was saved is kept.
            LimitReached: as many sandboxes run as may.
        """
        task = self._waking.get(sandbox_id)
        if task is None:
            task = asyncio.create_task(self._resume_alone(sandbox_id), name=f"resume {sandbox_id}")
            self._waking[sandbox_id] = task
            task.add_done_callback(lambda _: self._waking.pop(sandbox_id, None) and None)
            task.add_done_callback(retrieve)
        return await asyncio.shield(task)

    async def awake(self, row: SandboxRow, epoch: str | None = None) -> Live:
        """For a call that goes into the sandbox: waits for a change under way, wakes it when its policy says so, and tells
        its guest who it is when it was claimed and nobody has.

        ``epoch``: the life the caller's handle is of. `Stale` when its memory is gone.
        """
        for _ in range(MAX_TURNS):
            check_epoch(row, epoch)
            live = self._registry.live.get(row.id)
            if live is not None and row.state is _S.RUNNING:
                self._registry.touch(row.id)
                await self._binding.bound(live)
                return live
            if row.state in ASLEEP and row.lifecycle.auto_resume:
                await self.resume(row.id)
            elif row.state in TRANSIENT and row.state is not _S.CREATING:
                await self._changes.settled(row.id, WAIT_S)
            elif row.id in self._watching.deleting:
                raise gone(row.id)
            else:
                raise not_running(row)
            row = self._registry.known(row.id)
        raise SandboxUnreachable(
            f"sandbox {row.id} is {row.state.value}, and was changed {MAX_TURNS} times while this call waited",
            hint="try again",
            details={"state": row.state.value},
        )

    async def _resume_alone(self, sandbox_id: str) -> SandboxRow:
        async with self._changes.hold(sandbox_id, "resume"):
            row = self._registry.known(sandbox_id)
            if row.state is _S.RUNNING:
                return row
            next_state(row.state, Event.RESUME, sandbox_id)
            self._check_lifetime(row)
            with self._registry.metrics.timed("resume"):
                if row.state is _S.PAUSED:
                    return await self._unpause(sandbox_id)
                self._check_limit()
                return await self._start_again(row)

    async def _unpause(self, sandbox_id: str) -> SandboxRow:
        live = self._registry.live[sandbox_id]
        await live.driver.resume(sandbox_id)
        self._registry.touch(sandbox_id)
        row = self._registry.happen(sandbox_id, Event.RESUME)
        await tell_state(live, row.state, "resume")
        return row

    async def _start_again(self, row: SandboxRow) -> SandboxRow:
        stopped = row.state is _S.STOPPED
        kept = Event.KEPT_FILES if stopped else Event.KEPT_MEMORY
        row = self._registry.happen(row.id, Event.RESUME, epoch=next_life(row.epoch))
        identity = SavedIdentity.from_json(row.previous)
        end_all = stopped and identity is not None
        source = Source(self._registry.saved.directory(row.id), identity, "resume", end_all)
        try:
            await self.start_saved(row.id, source)
        except BaseException:
            self._slept_on(row.id, kept)
            raise
        _LOG.info("sandbox resumed", extra={"sandbox_id": row.id, "driver": row.driver})
        await asyncio.to_thread(self._registry.saved.remove, row.id)
        return self._registry.known(row.id)

    def _slept_on(self, sandbox_id: str, kept: Event) -> None:
        row = self._registry.row(sandbox_id)
        if row is not None and row.state is _S.RESUMING:
            self._registry.happen(sandbox_id, kept)

    async def start_saved(self, sandbox_id: str, source: Source) -> Live:
        """See `SandboxService.start_saved`."""
        registry, token, identity = self._registry, new_uplink_token(), source.identity
        row = registry.update(sandbox_id, token_hash=hash_secret(token) if identity is None else identity.session_hash)
        driver = registry.drivers.choose(row.driver)
        image = await asyncio.to_thread(registry.images.resolve, row.image_digest)
        life = Life(row, driver, image, token, source, await self._volumes.mounts(row.owner, row.volumes))
        limits = registry.limits
        live = await start_sandbox(
            life, registry.hub, start_s=limits.start_timeout_s, destroy_s=limits.destroy_timeout_s
        )
        self._watching.hold(live)
        now = registry.clock()
        live.active_us = now
        registry.happen(row.id, Event.STARTED, started_us=now, saved_us=None, previous=None)
        return live

    def _check_lifetime(self, row: SandboxRow) -> None:
        """One whose time is over rests for good, unless its policy is changed."""
        if is_over(row, self._registry.clock()):
            raise SandboxNotRunning(
                f"sandbox {row.id} is {row.state.value}, and its lifetime of {row.lifecycle.max_lifetime_s:g} s is over",
                hint="give it a longer max_lifetime_s, then resume it",
                details={"state": row.state.value, "sandbox_id": row.id},
            )

    def _check_limit(self) -> None:
        limit, count = self._registry.limits.max_running, self._registry.store.count().running
        if count >= limit:
            raise LimitReached(
                f"{count} sandboxes run, and the limit is {limit}",
                hint="suspend, stop or delete one first",
                details={"limit": limit, "count": count},
            )

    async def close(self, bound_s: float) -> None:
        """Waits for what is being woken."""
        if self._waking:
            await asyncio.wait(list(self._waking.values()), timeout=bound_s)


def check_epoch(row: SandboxRow, epoch: str | None) -> None:
    """`Stale` for a handle of a life whose memory is gone; None is a caller without a handle."""
    if epoch is not None and not same_memory(epoch, row.epoch):
        raise Stale(
            f"this handle is of an earlier life of sandbox {row.id}: what was in its memory is gone",
            hint="get the sandbox again, in Python by sandbox.refresh(), to go on in its present life",
            details={"epoch": epoch, "now": row.epoch},
        )
