"""A live sandbox comes to rest: paused (frozen in RAM), suspended (on disk, memory included) or stopped (files alone).

Each is asked for once and done in a task of its own; asking for what is the case already answers at once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from cloche.errors import UnsupportedCapability
from cloche.models import SandboxState
from cloche_server.drivers import Driver
from cloche_server.ids import new_epoch
from cloche_server.lifecycle import Event, next_state
from cloche_server.sandboxes._binding import Binding
from cloche_server.sandboxes._changes import Changes
from cloche_server.sandboxes._journal_events import tell_state
from cloche_server.sandboxes._registry import Registry
from cloche_server.sandboxes._saved import Saved
from cloche_server.sandboxes._saving import Saving, quieten
from cloche_server.state import SandboxRow

_LOG: Final = logging.getLogger("cloche.sandboxes")

_S = SandboxState


class Resting:
    """Every method answers with the row and the seconds the sandbox stood still, where that is known.

    All raise what `next_state` does, `Conflict` when another change goes on for too long, and `UnsupportedCapability`.
    """

    def __init__(self, registry: Registry, changes: Changes, saving: Saving, binding: Binding) -> None:
        self._registry = registry
        self._changes = changes
        self._saving = saving
        self._binding = binding

    async def pause(self, sandbox_id: str) -> SandboxRow:
        return await self._changes.run(sandbox_id, "pause", lambda: self._pause(sandbox_id))

    async def save(
        self, sandbox_id: str, event: Event, reason: str, idle_since_us: int | None
    ) -> tuple[SandboxRow, float | None]:
        """``event``: SUSPEND or STOP."""

        async def save() -> tuple[SandboxRow, float | None]:
            return await self._save(sandbox_id, event, reason, idle_since_us)

        return await self._changes.run(sandbox_id, event.value, save)

    async def _pause(self, sandbox_id: str) -> SandboxRow:
        row = self._registry.known(sandbox_id)
        if row.state is _S.PAUSED:
            return row
        next_state(row.state, Event.PAUSE, sandbox_id)
        live = self._registry.live[sandbox_id]
        _must_be_able(live.driver, "pause", "pausing", "suspend or stop it")
        await self._binding.bound(live)
        await quieten(live.uplink)
        try:
            await tell_state(live, _S.PAUSED, "pause", held=True)
            await live.driver.pause(sandbox_id)
            return self._registry.happen(sandbox_id, Event.PAUSE)
        except Exception as error:
            await tell_state(live, _S.RUNNING, "pause", error, held=True)
            raise
        finally:
            # Nobody takes a connection of a paused sandbox: calls wake it first. Those that waited here are told so.
            live.uplink.pool.go_on()

    async def _save(
        self, sandbox_id: str, event: Event, reason: str, idle_since_us: int | None
    ) -> tuple[SandboxRow, float | None]:
        row = self._registry.known(sandbox_id)
        if row.state is (_S.SUSPENDED if event is Event.SUSPEND else _S.STOPPED):
            return row, None
        if idle_since_us is not None and row.active_us != idle_since_us:
            return row, None
        next_state(row.state, event, sandbox_id)
        live = self._registry.live[sandbox_id]
        if event is Event.SUSPEND:
            _must_be_able(live.driver, "memory_snapshot", "suspending", "stop it: files are kept, processes end")
        _must_be_able(live.driver, "file_snapshot", "stopping", "delete it")
        await self._binding.bound(live)
        if row.state is _S.PAUSED:  # its guest has to close its connections
            await live.driver.resume(sandbox_id)
        # What a life before left must not be taken for this one's, should the server die in the middle.
        await asyncio.to_thread(self._registry.saved.remove, sandbox_id)
        state = self._registry.happen(sandbox_id, event).state
        try:
            if row.state is not _S.PAUSED:  # else it would run while it writes that down
                await tell_state(live, state, reason)
            directory = self._registry.saved.directory(sandbox_id)
            end_all = event is Event.STOP
            saved = await self._saving.save(live, directory, keep_running=False, end_all=end_all, reason=reason)
        except BaseException as error:
            self._went_on(sandbox_id)
            if isinstance(error, Exception):
                await tell_state(live, _S.RUNNING, reason, error)
            raise
        await self._make_durable(sandbox_id)
        row = self._rests(sandbox_id, event, saved)
        _LOG.info("sandbox %s", row.state.value, extra={"sandbox_id": sandbox_id, "reason": reason})
        return row, saved.checkpoint.pause_s

    def _went_on(self, sandbox_id: str) -> None:
        """Unless it ended, which the watch has said by now or will say."""
        row = self._registry.row(sandbox_id)
        if row is not None and row.state in (_S.SUSPENDING, _S.STOPPING):
            self._registry.happen(sandbox_id, Event.SAVE_FAILED)

    async def _make_durable(self, sandbox_id: str) -> None:
        try:
            await asyncio.to_thread(self._registry.saved.make_durable, sandbox_id)
        except OSError:
            _LOG.exception("a power failure now may lose a saved sandbox", extra={"sandbox_id": sandbox_id})

    def _rests(self, sandbox_id: str, event: Event, saved: Saved) -> SandboxRow:
        """Memory ends with a stop, so handles of before are stale from now on."""
        row = self._registry.known(sandbox_id)
        return self._registry.happen(
            sandbox_id,
            Event.SAVED,
            saved_us=self._registry.clock(),
            epoch=new_epoch() if event is Event.STOP else row.epoch,
            previous=previous_of(saved, with_memory=event is Event.SUSPEND),
        )


def previous_of(saved: Saved, *, with_memory: bool) -> dict[str, str]:
    """For the row: who the guest was, and which state to return to when it cannot be woken."""
    identity = {} if saved.identity is None else saved.identity.to_json()
    return {**identity, "state": (_S.SUSPENDED if with_memory else _S.STOPPED).value}


def _must_be_able(driver: Driver, capability: str, what: str, hint: str) -> None:
    if capability not in driver.capabilities:
        raise UnsupportedCapability(
            f"{what} is not possible with the driver {driver.name}",
            hint=hint,
            details={"driver": driver.name, "capability": capability},
        )
