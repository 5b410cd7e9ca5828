"""The sandboxes of this server, for everything else in it: looked for, made, changed, put to rest, woken, deleted.

Truth about processes is the drivers'; the rows remember what they mean; `Live` joins both for those that have processes.
A client that goes away changes nothing: whatever takes time is a task of this service. The work is done by the parts
(`Creating`, `Resting`, `Waking`, `Saving`, `Ending`, `Watching`) over one `Registry`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from cloche.errors import InternalError, NotFound
from cloche.models import Failure, Sandbox, SandboxCreate, SandboxState, SandboxUpdate
from cloche.models.guest import RebirthReason
from cloche_server.auth import Principal
from cloche_server.clock import Clock, now_us
from cloche_server.drivers import Driver, WhenSaved
from cloche_server.lifecycle import Event
from cloche_server.metrics import Metrics
from cloche_server.sandboxes._binding import Binding
from cloche_server.sandboxes._changes import Changes
from cloche_server.sandboxes._creating import Claim, Creating, check_policy
from cloche_server.sandboxes._drivers import DriverSet
from cloche_server.sandboxes._ending import Ending
from cloche_server.sandboxes._failure import not_running
from cloche_server.sandboxes._keeper import Keeper
from cloche_server.sandboxes._live import Live
from cloche_server.sandboxes._registry import Registry, gone
from cloche_server.sandboxes._resting import Resting
from cloche_server.sandboxes._saved import Saved, SavedIdentity, SavedStates
from cloche_server.sandboxes._saving import Saving, Steps
from cloche_server.sandboxes._seams import Images, Limits, NoVolumes, ResolvedImage, Volumes
from cloche_server.sandboxes._start import Source, expected_of
from cloche_server.sandboxes._waking import Waking
from cloche_server.sandboxes._watching import Watching
from cloche_server.state import PageToken, SandboxFilter, SandboxRow, SandboxStore
from cloche_server.uplink import UplinkHub


class SandboxService:
    """Owns the watch of every live sandbox. Call `close` at the end: sandboxes go on, the watching stops."""

    def __init__(
        self,
        *,
        store: SandboxStore,
        hub: UplinkHub,
        drivers: DriverSet,
        images: Images,
        limits: Limits,
        saved_dir: Path,
        volumes: Volumes | None = None,
        metrics: Metrics | None = None,
        clock: Clock = now_us,
    ) -> None:
        """``saved_dir`` holds what is suspended or stopped."""
        self.store: Final = store
        self.hub: Final = hub
        self.drivers: Final = drivers
        self.saved: Final = SavedStates(saved_dir)
        self.saved.prepare()
        self._limits: Final = limits
        self.registry: Final = Registry(
            store=store,
            hub=hub,
            drivers=drivers,
            images=images,
            limits=limits,
            saved=self.saved,
            clock=clock,
            metrics=metrics or Metrics(),
        )
        volumes = volumes or NoVolumes()
        self.changes: Final = Changes()
        self._watching: Final = Watching(self.registry)
        self.binding: Final = Binding(self.registry, self._watching)
        self._saving: Final = Saving(self.registry, self._watching)
        self._creating: Final = Creating(self.registry, self._watching, volumes)
        self._resting: Final = Resting(self.registry, self.changes, self._saving, self.binding)
        self._waking: Final = Waking(self.registry, self.changes, self._watching, self.binding, volumes)
        self._ending: Final = Ending(self.registry, self.changes, self._creating, self._watching)
        self._keeper: Final = Keeper(self.registry, self)

    def start_keeping(self) -> None:
        """From now on policies are kept. After recovery."""
        self.registry.changed = self._keeper.changed
        self._keeper.start()

    # Looking: nothing here wakes a sandbox, or counts as activity

    def get(self, principal: Principal, sandbox_id: str) -> SandboxRow:
        """`NotFound` for unknown and foreign ids alike, `Gone` for deleted ones."""
        row = self.registry.row(sandbox_id)
        if row is None or row.pool is not None or not principal.may_see(row.owner):
            raise NotFound(f"there is no sandbox {sandbox_id}", details={"kind": "sandbox", "id": sandbox_id})
        if row.state is SandboxState.DELETED:
            raise gone(sandbox_id)
        return row

    def find(self, sandbox_id: str) -> SandboxRow | None:
        """For callers that check by themselves who may see it; None when it is deleted, too."""
        row = self.registry.row(sandbox_id)
        return None if row is None or row.pool is not None or row.state is SandboxState.DELETED else row

    def find_by_name(self, principal: Principal, name: str) -> SandboxRow:
        """Among the caller's own sandboxes: names belong to owners."""
        row = self.store.find_by_name(principal.owner, name)
        if row is None:
            raise NotFound(f"there is no sandbox named {name!r}", details={"kind": "sandbox", "id": name})
        return self.registry.row(row.id) or row

    def list(self, wanted: SandboxFilter, limit: int, page: str | None) -> tuple[list[Sandbox], str | None]:
        after = None if page is None else PageToken.decode(page)
        rows, next_page = self.store.list(wanted, limit, after)
        return [(self.registry.row(row.id) or row).to_model() for row in rows], next_page

    async def running(self, principal: Principal, sandbox_id: str) -> Live:
        """For looking into one: `SandboxNotRunning` says what the sandbox is instead, and why."""
        row, live = self.get(principal, sandbox_id), self.registry.live.get(sandbox_id)
        if live is not None and row.state is SandboxState.RUNNING:
            await self.binding.bound(live)
            return live
        if sandbox_id in self._watching.deleting:
            raise gone(sandbox_id)
        raise not_running(row)

    async def settle(self, sandbox_id: str, bound_s: float = 1.0) -> None:
        """Wait until a sandbox that has ended is known to have, at most ``bound_s``: the watch hears of it a moment later
        than who talks to its guest."""
        await self._watching.settle(sandbox_id, bound_s)

    # Calls that go into a sandbox

    async def awake(self, principal: Principal, sandbox_id: str, epoch: str | None = None) -> Live:
        """The running sandbox for a call that works in it: it is woken when its policy says so, a change under way is
        waited for (60 s at most), and the call counts as activity.

        Raises:
            SandboxNotRunning: it is not to be woken, or cannot be.
            Stale: ``epoch``, of the life the caller's handle is of, has ended and its memory is gone.
            SandboxStartFailed, LimitReached: waking failed; what was saved is kept.
            Conflict: a change takes too long.
        """
        return await self._waking.awake(self.get(principal, sandbox_id), epoch)

    def touch(self, sandbox_id: str) -> None:
        """Something was done in it now. Not written at once."""
        self.registry.touch(sandbox_id)

    # Making

    async def create(
        self, owner: str, wanted: SandboxCreate, claim: Claim | None = None, *, pool: str | None = None
    ) -> SandboxRow:
        """The running sandbox. A create that fails leaves nothing behind: no row, no name, no process.

        ``claim`` is told the id as soon as the row exists. The caller may go away: the create goes on. One that is made
        for a ``pool`` is hidden from everybody, and counts to no limit, until its row says otherwise.
        """
        return await self._creating.create(owner, wanted, claim, pool)

    async def create_saved(
        self,
        row: SandboxRow,
        directory: Path,
        identity: SavedIdentity | None,
        *,
        reason: RebirthReason,
        claim: Claim | None = None,
        end_all: bool = False,
        saved: WhenSaved | None = None,
    ) -> SandboxRow:
        """As `create`, from what was saved (a snapshot, a fork). ``row`` is new (`new_row` makes one): in the state
        ``creating``, with an id and an epoch of its own, and not stored yet. Limits are the caller's to check.
        ``end_all``: of memory that was saved nothing goes on, but for the guest. ``saved``: see `Driver.start`."""
        source = Source(directory, identity, reason, end_all, saved)

        async def start() -> None:
            await self._waking.start_saved(row.id, source)

        return await self._creating.insert(row, start, claim)

    def new_row(
        self, owner: str, wanted: SandboxCreate, driver: Driver, image: ResolvedImage, token: str = ""
    ) -> SandboxRow:
        """For `create_saved`; change it with `dataclasses.replace`. Nothing is stored."""
        check_policy(wanted.lifecycle, driver)
        return self._creating.new_row(owner, wanted, driver, image, token)

    def check_limits(self, owner: str, more: int = 1) -> None:
        """`LimitReached` unless ``owner`` may have ``more`` running sandboxes now."""
        self._creating.check_limits(owner, more)

    def reserve(self, owner: str) -> AbstractContextManager[None]:
        """`check_limits` for one more, and its place is taken while the body runs."""
        return self._creating.reserve(owner)

    def room(self) -> int:
        """Sandboxes that may run besides those that are somebody's: what pools may have."""
        return self._creating.room()

    def forget(self, sandbox_id: str) -> None:
        """No trace is left of one that is deleted and whose id nobody was told."""
        self.store.remove(sandbox_id)

    # Changing

    def update(self, principal: Principal, sandbox_id: str, wanted: SandboxUpdate) -> SandboxRow:
        """What is left out stays; labels, metadata and lifecycle are replaced as a whole. Only a name can be taken away."""
        row = self.get(principal, sandbox_id)
        said = {name: getattr(wanted, name) for name in wanted.model_fields_set}
        changes = {name: value for name, value in said.items() if value is not None or name == "name"}
        if not changes:
            return row
        if wanted.lifecycle is not None and (driver := self.drivers.get(row.driver)) is not None:
            check_policy(wanted.lifecycle, driver)
        return self.registry.update(sandbox_id, **changes)

    async def save(
        self,
        live: Live,
        directory: Path,
        *,
        keep_running: bool,
        end_all: bool = False,
        reason: str = "snapshot",
        steps: Steps | None = None,
    ) -> Saved:
        """Memory (where the driver can) and files of one instant into ``directory``, which must not exist.

        Inside a change (`Changes.hold`), of a sandbox that is running. Streams are cut and go on by their cursors; plain
        calls under way have one second to end, then fail with a retryable ``sandbox_unreachable``; new ones wait. ``end_all``
        ends contexts, processes and terminals first. With ``keep_running`` false the directory is all there is
        afterwards, and the sandbox is not live any more. The row is the caller's to change.

        On any failure the directory is gone and the sandbox runs on: `SnapshotFailed`, `StorageFull`,
        `SandboxNotRunning`, `SandboxUnreachable`.
        """
        return await self._saving.save(
            live, directory, keep_running=keep_running, end_all=end_all, reason=reason, steps=steps
        )

    async def start_saved(
        self,
        row: SandboxRow,
        directory: Path,
        identity: SavedIdentity | None,
        *,
        reason: RebirthReason,
        end_all: bool = False,
    ) -> Live:
        """A new life from what `save` wrote; ``identity`` as `Saved` has it (None: files only, and a new guest).

        ``row`` is in the store, ``creating``, ``resuming`` or ``restoring``, with the epoch of the new life; nothing of the
        sandbox is alive. On success it is ``running`` and watched, and its ``previous`` is forgotten. On failure
        nothing of the new life is left, ``directory`` is as it was, and the row is the caller's to change.

        To roll back in place: put what is rolled back to at ``service.saved.directory(id)`` first, then make the row
        ``restoring`` with ``previous`` (`previous_of`), then end the old life. A server that finds it half done makes it
        ``suspended`` over that directory.
        """
        return await self._waking.start_saved(row.id, Source(directory, identity, reason, end_all))

    async def pause(self, sandbox_id: str) -> SandboxRow:
        return await self._resting.pause(sandbox_id)

    async def suspend(
        self, sandbox_id: str, *, reason: str = "suspend", idle_since_us: int | None = None
    ) -> tuple[SandboxRow, float | None]:
        """And the seconds it stood still; None when nothing was done: it was suspended already, or was active after
        ``idle_since_us``. ``reason`` is for the journal of the sandbox."""
        return await self._resting.save(sandbox_id, Event.SUSPEND, reason, idle_since_us)

    async def stop(
        self, sandbox_id: str, *, reason: str = "stop", idle_since_us: int | None = None
    ) -> tuple[SandboxRow, float | None]:
        """As `suspend`; contexts, processes and terminals end first."""
        return await self._resting.save(sandbox_id, Event.STOP, reason, idle_since_us)

    async def resume(self, sandbox_id: str) -> SandboxRow:
        """Once, however many ask."""
        return await self._waking.resume(sandbox_id)

    # Ending

    async def delete(self, principal: Principal, sandbox_id: str) -> SandboxRow:
        """Bounded. Deletes of one sandbox share one task: the first answers, the others get `Gone`."""
        self.get(principal, sandbox_id)
        return await self._ending.delete(sandbox_id)

    async def end(self, sandbox_id: str) -> SandboxRow:
        """`delete`, by the server itself."""
        return await self._ending.delete(sandbox_id)

    def release(self, sandbox_id: str) -> Live | None:
        """Calls no longer reach it, and its end is the caller's business: `end_life` follows. None when it is at rest."""
        live = self.registry.live.get(sandbox_id)
        self._watching.release(sandbox_id)
        return live

    async def end_life(self, live: Live) -> None:
        """Nothing of this life is left: no process, mount or connection. `InternalError` when something may be."""
        await self.registry.life_ends(live.row)
        self.hub.remove(live.row.id)
        if not await self._watching.destroy(live.driver, live.row.id):
            raise InternalError(
                f"sandbox {live.row.id} could not be ended within {self._limits.destroy_timeout_s:g} s",
                hint="try again; the server's log says more",
            )

    def fail(self, row: SandboxRow, event: Event, failure: Failure, *, keep_name: bool = True) -> None:
        """For recovery: the sandbox is not there any more."""
        self.hub.remove(row.id)
        name = row.name if keep_name else None
        self.registry.happen(row.id, event, ended_us=self.registry.clock(), failure=failure, name=name)

    async def forget_start(self, row: SandboxRow, failure: Failure) -> None:
        """For recovery: a start that a dead server left half-done. Its name and idempotency key are free again."""
        self.fail(row, Event.START_FAILED, failure, keep_name=False)

    async def adopt(self, row: SandboxRow, driver: Driver) -> None:
        """Of a server before this one: listens again where its guest dials."""
        uplink = await self.hub.listen(expected_of(row))
        self._watching.hold(Live(row=row, driver=driver, uplink=uplink, active_us=self.registry.clock()))

    async def close(self) -> None:
        """Waits for what is under way, then stops watching."""
        await self._keeper.close()
        bound_s = self._limits.start_timeout_s
        for part in (self._creating, self._waking, self.changes, self._ending, self.binding):
            await part.close(bound_s)
        await self._watching.close()
