"""Sandboxes of a template: from its snapshot, and where that has no memory, with contexts and services started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cloche.errors import SandboxStartFailed
from cloche.models import Origin, SandboxCreate
from cloche_server.routing import invalid
from cloche_server.sandboxes import SandboxService, SavedIdentity
from cloche_server.sandboxes._live import Live
from cloche_server.sandboxes._seams import Images
from cloche_server.snapshots._library import SnapshotLibrary
from cloche_server.state import SandboxRow, SnapshotRow, TemplateRow
from cloche_server.templates._guest import Guest
from cloche_server.templates._log import BuildLog
from cloche_server.templates._steps import StepFailed, declare_services, start_contexts

_LOG: Final = logging.getLogger("cloche.templates")

THEIRS: Final = ("image", "driver", "resources", "sudo")
"""What a template says, and a create must not."""


def check_only_bound_late(wanted: SandboxCreate) -> None:
    """`InvalidRequest` for a create that wants a template to be something else."""
    given = [name for name in THEIRS if name in wanted.model_fields_set and getattr(wanted, name) is not None]
    problems: list[tuple[str, str]] = [(name, "comes from the template: leave it out") for name in given]
    if wanted.snapshot is not None:
        problems.append(("snapshot", "a template is one already: give one of the two"))
    if wanted.volumes:
        problems.append(("volumes", "a sandbox of a template has none: what was saved cannot get other mounts"))
    if problems:
        raise invalid(problems)


class TemplateStarts:
    """Nothing is known here of pools but the name that a row is parked under."""

    def __init__(self, sandboxes: SandboxService, library: SnapshotLibrary, images: Images) -> None:
        self._sandboxes = sandboxes
        self._library = library
        self._images = images

    async def start(
        self,
        template: TemplateRow,
        wanted: SandboxCreate,
        *,
        owner: str,
        pool: str | None = None,
        claim: Callable[[str], None] | None = None,
    ) -> SandboxRow:
        """The running sandbox. A create that fails leaves nothing behind. A parked one counts to nobody's limit.

        Raises:
            InvalidRequest, LimitReached, NotFound (its image is gone), DriverUnavailable, SnapshotBroken,
            SandboxStartFailed
        """
        check_only_bound_late(wanted)
        if pool is None:
            self._sandboxes.check_limits(owner)
        snapshot = self._snapshot(template)
        row = self._row(template, snapshot, owner, wanted, pool)
        identity = SavedIdentity.from_json(snapshot.identity) if snapshot.memory else None
        async with self._library.using(snapshot) as directory:
            row = await self._sandboxes.create_saved(row, directory, identity, reason="fork", claim=claim)
        if not snapshot.memory:
            await asyncio.shield(asyncio.ensure_future(self._make_live(row, template)))
        return row

    def _snapshot(self, template: TemplateRow) -> SnapshotRow:
        assert template.snapshot_id is not None, "only ready ones are started"
        snapshot = self._library.store.get(template.snapshot_id)
        assert snapshot is not None, "rows of snapshots stay"
        return snapshot

    def _row(
        self, template: TemplateRow, snapshot: SnapshotRow, owner: str, wanted: SandboxCreate, pool: str | None
    ) -> SandboxRow:
        driver = self._sandboxes.drivers.choose(snapshot.driver)
        image = self._images.resolve(snapshot.image_digest)
        made = wanted.model_copy(
            update={
                "image": snapshot.image,
                "resources": snapshot.resources,
                "sudo": snapshot.sudo,
                "env": {**snapshot.env, **wanted.env},
            }
        )
        row = self._sandboxes.new_row(owner, made, driver, image)
        origin = Origin(kind="template", id=template.reference)
        return replace(row, origin=origin, parent=snapshot.id, pool=pool)

    async def _make_live(self, row: SandboxRow, template: TemplateRow) -> None:
        """What a snapshot of files has not: done again, in a task that goes on when the client goes away."""
        live = self._sandboxes.registry.live.get(row.id)
        try:
            if live is None:
                raise StepFailed("start", "the sandbox ended")
            await _run_again(live, template)
        except BaseException as error:
            await asyncio.shield(self._undo(row.id))
            if not isinstance(error, StepFailed):
                raise
            raise SandboxStartFailed(
                f"a sandbox of {template.reference} did not become what its template says: {error}",
                hint="a context's code must succeed each time it is run, as this driver saves files alone",
                details={"driver": row.driver, "step": error.step, "output": ""},
            ) from error

    async def _undo(self, sandbox_id: str) -> None:
        try:
            await self._sandboxes.end(sandbox_id)
        except Exception:
            _LOG.exception("a failed start could not be cleaned up", extra={"sandbox_id": sandbox_id})
        self._sandboxes.forget(sandbox_id)


async def _run_again(live: Live, template: TemplateRow) -> None:
    guest, spec, log = Guest(live.uplink.pool), template.spec, BuildLog()
    await start_contexts(guest, spec.contexts, spec.setup_timeout_s, log)
    await declare_services(guest, spec.services, spec.setup_timeout_s, log)
