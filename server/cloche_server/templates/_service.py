"""Templates: found, built, deleted.

A build is a task of this service: the client may go away. Its sandbox is hidden (`BUILDER`) and is thrown away at the
end, whatever happened; what stays is a snapshot, or the log and the reason why there is none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from cloche.errors import ClocheError, Conflict, Gone, LimitReached, NotFound, TemplateBuildFailed
from cloche.models import SandboxCreate, TemplateCreate
from cloche_server.clock import Clock, now_us
from cloche_server.sandboxes import DriverSet, Images
from cloche_server.state import TemplateRow, TemplateStore
from cloche_server.templates._follow import follow, place_in
from cloche_server.templates._guest import Guest
from cloche_server.templates._log import BuildLog
from cloche_server.templates._spec import newest_ready, next_version, parse_reference, spec_digest
from cloche_server.templates._steps import (
    StepFailed,
    StepName,
    declare_services,
    run_setup,
    start_contexts,
)
from cloche_server.templates._workshop import BUILDER, Workshop

_LOG: Final = logging.getLogger("cloche.templates")

BUILDS_AT_ONCE: Final = 2
"""Of all owners: a build keeps a core busy, and what runs in sandboxes must not wait for it."""

MAX_BUILDS_PER_OWNER: Final = 8
"""Running or waiting for their turn."""

T = TypeVar("T")

MAX_REMEMBERED: Final = 1000

INTERRUPTED: Final = "interrupted: the server was stopped, or the template deleted, while this was being built"

PoolsOf = Callable[[str, str, int], Sequence[str]]
"""(owner, name, version) -> names of the pools that are filled from it."""


class TemplateService:
    """Call `recover` before the first request, and `close` at the end."""

    def __init__(
        self, store: TemplateStore, workshop: Workshop, drivers: DriverSet, images: Images, clock: Clock = now_us
    ) -> None:
        self._store = store
        self._workshop = workshop
        self._drivers = drivers
        self._images = images
        self._clock = clock
        self._builds: dict[tuple[str, str, int], asyncio.Task[TemplateRow]] = {}
        self._logs: dict[tuple[str, str, int], BuildLog] = {}
        self._turn = asyncio.Semaphore(BUILDS_AT_ONCE)
        self._ready: dict[tuple[str, str], TemplateRow] = {}
        self.pools_of: PoolsOf = lambda *_: ()
        self.changed: Callable[[], None] = lambda: None
        """Told when a version is ready or deleted."""

    # Looking

    def get(self, owner: str, reference: str) -> TemplateRow:
        """A bare name is its newest ready version, or its newest one when none is. `NotFound`, `Gone`."""
        name, version = parse_reference(reference)
        versions = self._store.versions(owner, name)
        alive = [row for row in versions if row.state != "deleted"]
        if version is None:
            version = newest_ready(versions) or max((row.version for row in alive), default=None)
        row = next((row for row in versions if row.version == version), None)
        if row is None:
            raise NotFound(f"there is no template {reference}", details={"kind": "template", "id": reference})
        if row.state == "deleted":
            raise Gone(f"template {reference} was deleted", details={"kind": "template", "id": reference})
        return row

    def ready(self, owner: str, reference: str) -> TemplateRow:
        """One to start from. `Conflict` says in which state it is instead. Remembered: every create asks."""
        known = self._ready.get((owner, reference))
        if known is not None:
            return known
        row = self.get(owner, reference)
        if row.state != "ready":
            why = f": {row.failure}" if row.failure else ""
            raise Conflict(
                f"template {row.reference} is {row.state}{why}",
                hint="wait for its build" if row.state == "building" else "build it again with the same inputs",
                details={"kind": "template", "id": row.reference, "state": row.state},
            )
        if len(self._ready) < MAX_REMEMBERED:
            self._ready[owner, reference] = row
        return row

    def list(
        self, owner: str | None, limit: int, page: str | None, name: str | None = None
    ) -> tuple[list[TemplateRow], str | None]:
        """None: all owners, all names."""
        return self._store.list(owner, limit, page, name)

    def log(self, owner: str, reference: str) -> tuple[str, bool]:
        """What the build printed so far, and whether something is missing in its middle."""
        row = self.get(owner, reference)
        log = self._logs.get(_key(row))
        return self._store.log(row) if log is None else (log.text, log.truncated)

    def follow(self, owner: str, reference: str, cursor: str | None) -> AsyncGenerator[bytes, None]:
        """Its log as events, to the end of its build; see `cloche_server.templates._follow`."""
        row = self.get(owner, reference)
        log = self._logs.get(_key(row)) or BuildLog.stored(*self._store.log(row))
        place = place_in(row, log, cursor)
        return follow(log, place, lambda: self._store.get(*_key(row)) or row)

    async def wait(self, owner: str, reference: str, wait_s: float) -> TemplateRow:
        """`get`, at most ``wait_s`` later when it is being built now."""
        row = self.get(owner, reference)
        task = self._builds.get(_key(row))
        if task is not None:
            await asyncio.wait([task], timeout=wait_s)
        return self.get(owner, f"{row.name}@{row.version}")

    # Building

    async def create(self, owner: str, wanted: TemplateCreate, wait_s: float) -> TemplateRow:
        """The version of these inputs: ready at once when there is one, else built.

        Returns after ``wait_s`` at the latest, with the row as it is then. `TemplateBuildFailed` when the build failed by
        then; the next call tries again.
        """
        driver = self._drivers.choose(wanted.driver)
        image = self._images.resolve(wanted.image)
        digest = spec_digest(wanted, image.digest, driver.name)
        row = self._version(owner, wanted, digest)
        if row.state == "ready":
            return row
        task = self._builds.get(_key(row)) or self._start(row, driver.name)
        await asyncio.wait([task], timeout=wait_s)
        return task.result() if task.done() and not task.cancelled() else self._store.get(*_key(row)) or row

    def _version(self, owner: str, wanted: TemplateCreate, digest: str) -> TemplateRow:
        """The row of these inputs. A new one, or one whose build failed or whose snapshot is gone, is ``building``."""
        versions = self._store.versions(owner, wanted.name)
        same = [row for row in versions if row.spec_digest == digest and row.state != "deleted"]
        if same and (_key(same[-1]) in self._builds or self._usable(same[-1])):
            return same[-1]
        self._check_limit(owner)
        if same:
            fresh = {"failure": None, "snapshot_id": None, "build_us": None, "created_us": self._clock()}
            return self._change(same[-1], state="building", **fresh)
        row = TemplateRow(
            owner, wanted.name, next_version(versions), "building", wanted, digest, created_us=self._clock()
        )
        self._store.insert(row)
        return row

    def _usable(self, row: TemplateRow) -> bool:
        return row.state == "ready" and row.snapshot_id is not None and self._workshop.has_snapshot(row.snapshot_id)

    def _check_limit(self, owner: str) -> None:
        count = sum(1 for builder, _, _ in self._builds if builder == owner)
        if count >= MAX_BUILDS_PER_OWNER:
            raise LimitReached(
                f"{owner} has {count} builds running or waiting, and the limit is {MAX_BUILDS_PER_OWNER}",
                hint="wait for one of them",
                details={"limit": MAX_BUILDS_PER_OWNER, "count": count},
            )

    def _start(self, row: TemplateRow, driver: str) -> asyncio.Task[TemplateRow]:
        log = self._logs[_key(row)] = BuildLog()
        task = asyncio.create_task(self._build(row, driver, log))
        self._builds[_key(row)] = task
        task.add_done_callback(lambda done: self._ended(row, done))
        return task

    def _ended(self, row: TemplateRow, task: asyncio.Task[TemplateRow]) -> None:
        self._builds.pop(_key(row), None)
        self._logs.pop(_key(row)).close()
        if not task.cancelled():
            task.exception()  # whoever waits gets it; nobody may

    async def _build(self, row: TemplateRow, driver: str, log: BuildLog) -> TemplateRow:
        try:
            async with self._turn:
                began = self._clock()
                snapshot_id = await self._run_steps(row, driver, log)
        except asyncio.CancelledError:
            self._finish(row, log, state="failed", failure=INTERRUPTED)
            raise
        except StepFailed as error:
            raise self._failed(row, log, error.step, str(error)) from error
        except Exception:
            _LOG.exception("a build failed", extra={"template": row.reference})
            self._finish(row, log, state="failed", failure="a defect in Cloche; the server's log says more")
            raise
        ready = self._finish(
            row, log, state="ready", snapshot_id=snapshot_id, failure=None, build_us=self._clock() - began
        )
        self.changed()
        return ready

    def _failed(self, row: TemplateRow, log: BuildLog, step: StepName, message: str) -> TemplateBuildFailed:
        log.line(f"failed: {message}")
        self._finish(row, log, state="failed", failure=f"{step}: {message}"[:4000])
        return TemplateBuildFailed(
            f"template {row.reference} could not be built: {message}",
            hint=f"the log says more: cloche templates log {row.reference}; the next build of the same inputs tries again",
            details={"template": row.name, "version": row.version, "step": step, "log": log.end},
        )

    def _finish(self, row: TemplateRow, log: BuildLog, **changes: object) -> TemplateRow:
        self._store.write_log(row, log.text, log.truncated)
        return self._change(row, **changes)

    def _change(self, row: TemplateRow, **changes: object) -> TemplateRow:
        """Whatever was remembered may be another version now."""
        self._ready.clear()
        return self._store.update(row, **changes)

    async def _run_steps(self, row: TemplateRow, driver: str, log: BuildLog) -> str:
        """The id of the snapshot. The builder is gone afterwards."""
        spec = row.spec
        wanted = SandboxCreate.model_validate(
            {
                **{name: getattr(spec, name) for name in ("image", "resources", "env", "sudo")},
                "driver": driver,
                "warm": False,
            }
        )
        live = await _in_step("start", self._workshop.make(row.owner, wanted, BUILDER))
        try:
            guest = Guest(live.uplink.pool)
            await _make_ready(guest, spec, log)
            log.line("== snapshot")
            return await _in_step("snapshot", self._workshop.save(live, row.reference))
        finally:
            await asyncio.shield(self._workshop.discard(live.row.id))

    # Ending

    async def delete(self, owner: str, reference: str) -> TemplateRow:
        """One version, or every version of a bare name; the newest is returned. `Conflict` while a pool is filled from it."""
        name, version = parse_reference(reference)
        newest = self.get(owner, reference)
        rows = [row for row in self._store.versions(owner, name) if row.state != "deleted"]
        doomed = [row for row in rows if version is None or row.version == version]
        for row in doomed:
            self._check_unused(row)
        for row in doomed:
            newest = await self._delete(row)
        self.changed()
        return newest

    def _check_unused(self, row: TemplateRow) -> None:
        users = self.pools_of(row.owner, row.name, row.version)
        if users:
            raise Conflict(
                f"template {row.reference} is used by the pool {users[0]}",
                hint="delete the pool first, or let it use another template",
                details={"kind": "template", "id": row.reference, "pools": list(users)},
            )

    async def _delete(self, row: TemplateRow) -> TemplateRow:
        task = self._builds.get(_key(row))
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        row = self._store.get(*_key(row)) or row
        self._store.write_log(row, "", False)
        deleted = self._change(row, state="deleted", snapshot_id=None)
        if row.snapshot_id is not None:
            await self._workshop.discard_snapshot(row.snapshot_id)
        return deleted

    def recover(self) -> None:
        """Builds of a server before this one did not come to their end. Their sandboxes are removed with what is parked."""
        for row in self._store.with_state("building"):
            self._store.update(row, state="failed", failure=INTERRUPTED)

    async def close(self) -> None:
        """What is being built is given up, and its sandbox removed."""
        tasks = list(self._builds.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _make_ready(guest: Guest, spec: TemplateCreate, log: BuildLog) -> None:
    """All steps of a fresh sandbox. `StepFailed`."""
    if spec.setup:
        await _in_step("setup", run_setup(guest, spec.setup, spec.setup_timeout_s, log))
    await _in_step("context", start_contexts(guest, spec.contexts, spec.setup_timeout_s, log))
    await _in_step("service", declare_services(guest, spec.services, spec.setup_timeout_s, log))


async def _in_step(step: StepName, doing: Awaitable[T]) -> T:
    """What breaks between server and guest, or in the driver, is a failure of the step, too."""
    try:
        return await doing
    except ClocheError as error:
        raise StepFailed(step, f"{error.code}: {error.message}") from error


def _key(row: TemplateRow) -> tuple[str, str, int]:
    return row.owner, row.name, row.version
