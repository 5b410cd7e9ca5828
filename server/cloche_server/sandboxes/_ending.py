"""Deleting sandboxes, whatever state they are in."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

from cloche.errors import InternalError
from cloche.models import SandboxState
from cloche_server.lifecycle import Event
from cloche_server.sandboxes._changes import Changes, retrieve
from cloche_server.sandboxes._creating import Creating
from cloche_server.sandboxes._registry import Registry, gone
from cloche_server.sandboxes._watching import Watching
from cloche_server.state import SandboxRow

_LOG: Final = logging.getLogger("cloche.sandboxes")


class Ending:
    """Owns the deletes under way."""

    def __init__(self, registry: Registry, changes: Changes, creating: Creating, watching: Watching) -> None:
        self._registry = registry
        self._changes = changes
        self._creating = creating
        self._watching = watching
        self._under_way: dict[str, asyncio.Task[SandboxRow]] = {}

    async def delete(self, sandbox_id: str) -> SandboxRow:
        """Bounded. Deletes of one sandbox share one task: the first answers, the others get `Gone`."""
        under_way = self._under_way.get(sandbox_id)
        if under_way is not None:
            await asyncio.shield(under_way)
            raise gone(sandbox_id)
        row = self._registry.known(sandbox_id)
        task = asyncio.create_task(self._delete(row), name=f"delete {sandbox_id}")
        self._under_way[sandbox_id] = task
        task.add_done_callback(lambda _: self._under_way.pop(sandbox_id, None) and None)
        task.add_done_callback(retrieve)
        return await asyncio.shield(task)

    async def _delete(self, row: SandboxRow) -> SandboxRow:
        self._watching.deleting.add(row.id)
        try:
            await self._creating.cancel(row.id)
            async with self._changes.override(row.id):
                if self._registry.row(row.id) is None:  # its create was undone, and nothing is left
                    return replace(row, state=SandboxState.DELETED, ended_us=self._registry.clock())
                return await self._remove(row.id)
        finally:
            self._watching.deleting.discard(row.id)

    async def _remove(self, sandbox_id: str) -> SandboxRow:
        registry = self._registry
        row, live = registry.known(sandbox_id), registry.live.get(sandbox_id)
        driver = registry.drivers.get(row.driver)
        if driver is not None and not await self._watching.destroy(driver, sandbox_id):
            if live is not None and live.watch is not None and live.watch.done():
                self._watching.hold(live)
            raise InternalError(
                f"sandbox {sandbox_id} could not be removed within {registry.limits.destroy_timeout_s:g} s",
                hint="try again; the server's log says more",
            )
        self._watching.release(sandbox_id)
        registry.hub.remove(sandbox_id)
        await asyncio.to_thread(registry.saved.remove, sandbox_id)
        # Values of env may be secrets; nothing needs them any more.
        deleted = registry.happen(
            sandbox_id,
            Event.DELETE,
            ended_us=row.ended_us or registry.clock(),
            env=dict.fromkeys(row.env, ""),
            previous=None,
            known_as=None,
        )
        _LOG.info("sandbox deleted", extra={"sandbox_id": sandbox_id})
        return deleted

    async def close(self, bound_s: float) -> None:
        """Waits for what is being deleted."""
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()), timeout=bound_s)
