"""The sandboxes of this server: create, find, list, change, delete, and the watch over each.

Truth about processes is the drivers'; the rows remember what they mean; `Live` joins both for those that run. A client
that goes away changes nothing: creates and deletes are tasks of this service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from cloche.errors import ClocheError, Gone, InternalError, LimitReached, NotFound, SandboxNotRunning
from cloche.models import Failure, Sandbox, SandboxCreate, SandboxState, SandboxUpdate
from cloche_server.auth import Principal, hash_secret
from cloche_server.clock import Clock, now_us
from cloche_server.drivers import Driver
from cloche_server.ids import new_epoch, new_sandbox_id, new_uplink_token
from cloche_server.sandboxes._drivers import DriverSet
from cloche_server.sandboxes._failure import failure_of
from cloche_server.sandboxes._live import Live
from cloche_server.sandboxes._seams import Images, Limits, ResolvedImage
from cloche_server.sandboxes._start import expected_of, start_sandbox
from cloche_server.state import IdempotencyStore, PageToken, SandboxFilter, SandboxRow, SandboxStore
from cloche_server.uplink import UplinkHub

_LOG: Final = logging.getLogger("cloche.sandboxes")


class SandboxService:
    """Owns the watch of every live sandbox. Call `close` at the end: sandboxes go on, the watching stops."""

    def __init__(
        self,
        *,
        store: SandboxStore,
        idempotency: IdempotencyStore,
        hub: UplinkHub,
        drivers: DriverSet,
        images: Images,
        limits: Limits,
        clock: Clock = now_us,
    ) -> None:
        self.store = store
        self.hub = hub
        self.drivers = drivers
        self._idempotency = idempotency
        self._images = images
        self._limits = limits
        self._clock = clock
        self._live: dict[str, Live] = {}
        self._creating: dict[str, asyncio.Task[SandboxRow]] = {}
        self._deleting: dict[str, asyncio.Task[SandboxRow]] = {}

    # Looking

    def get(self, principal: Principal, sandbox_id: str) -> SandboxRow:
        """`NotFound` for unknown and foreign ids alike, `Gone` for deleted ones."""
        live = self._live.get(sandbox_id)
        row = live.row if live is not None else self.store.get(sandbox_id)
        if row is None or not principal.may_see(row.owner):
            raise NotFound(f"there is no sandbox {sandbox_id}", details={"kind": "sandbox", "id": sandbox_id})
        if row.state is SandboxState.DELETED:
            raise _gone(sandbox_id)
        return row

    def find(self, sandbox_id: str) -> SandboxRow | None:
        """For callers that check by themselves who may see it; None when it is deleted, too."""
        live = self._live.get(sandbox_id)
        row = live.row if live is not None else self.store.get(sandbox_id)
        return None if row is None or row.state is SandboxState.DELETED else row

    def find_by_name(self, principal: Principal, name: str) -> SandboxRow:
        """Among the caller's own sandboxes: names belong to owners."""
        row = self.store.find_by_name(principal.owner, name)
        if row is None:
            raise NotFound(f"there is no sandbox named {name!r}", details={"kind": "sandbox", "id": name})
        return row

    def list(self, wanted: SandboxFilter, limit: int, page: str | None) -> tuple[list[Sandbox], str | None]:
        after = None if page is None else PageToken.decode(page)
        rows, next_page = self.store.list(wanted, limit, after)
        return [row.to_model() for row in rows], next_page

    def running(self, principal: Principal, sandbox_id: str) -> Live:
        """For calls that go on to the guest. `SandboxNotRunning` says what the sandbox is instead, and why."""
        live = self._live.get(sandbox_id)
        if live is not None and principal.may_see(live.row.owner):
            return live
        row = self.get(principal, sandbox_id)
        details: dict[str, Any] = {"state": row.state.value, "sandbox_id": sandbox_id}
        if row.failure is not None:
            details["failure"] = row.failure.model_dump()
        why = f": {row.failure.message}" if row.failure else ""
        raise SandboxNotRunning(f"sandbox {sandbox_id} is {row.state.value}{why}", details=details)

    async def settle(self, sandbox_id: str, bound_s: float = 1.0) -> None:
        """Wait until a sandbox that has ended is known to have, at most ``bound_s``: the watch hears of it a moment later
        than who talks to its guest."""
        live = self._live.get(sandbox_id)
        if live is not None and live.watch is not None:
            await asyncio.wait([live.watch], timeout=bound_s)

    # Creating

    async def create(self, owner: str, wanted: SandboxCreate, claim: Callable[[str], None] | None = None) -> SandboxRow:
        """The running sandbox. A create that fails leaves nothing behind: no row, no name, no process.

        ``claim`` is told the id as soon as the row exists. The caller may go away: the create goes on.
        """
        self._check_limits(owner)
        driver = self.drivers.choose(wanted.driver)
        image = self._images.resolve(wanted.image)
        token = new_uplink_token()
        row = self._new_row(owner, wanted, driver, image, token)
        self.store.insert(row)
        if claim is not None:
            claim(row.id)
        task = asyncio.create_task(self._create(row, token, driver, image))
        self._creating[row.id] = task
        task.add_done_callback(_retrieve)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise _gone(row.id) from None
            raise

    async def _create(self, row: SandboxRow, token: str, driver: Driver, image: ResolvedImage) -> SandboxRow:
        limits = self._limits
        try:
            live = await start_sandbox(
                row, token, driver, image, self.hub, start_s=limits.start_timeout_s, destroy_s=limits.destroy_timeout_s
            )
        except BaseException:
            self.store.remove(row.id)
            self._idempotency.forget(row.id)
            raise
        finally:
            self._creating.pop(row.id, None)
        live.row = self.store.update(row, state=SandboxState.RUNNING, started_us=self._clock())
        self._hold(live)
        _LOG.info("sandbox started", extra={"sandbox_id": row.id, "driver": row.driver})
        return live.row

    def _new_row(
        self, owner: str, wanted: SandboxCreate, driver: Driver, image: ResolvedImage, token: str
    ) -> SandboxRow:
        now = self._clock()
        return SandboxRow(
            id=new_sandbox_id(),
            owner=owner,
            name=wanted.name,
            state=SandboxState.CREATING,
            image=wanted.image,
            image_digest=image.digest,
            driver=driver.name,
            isolation=driver.isolation,
            capabilities=sorted(driver.capabilities),
            epoch=new_epoch(),
            token_hash=hash_secret(token),
            resources=wanted.resources,
            sudo=wanted.sudo,
            env=wanted.env,
            labels=wanted.labels,
            metadata=wanted.metadata,
            created_us=now,
            active_us=now,
            born_us=now,
            lifecycle=wanted.lifecycle,
        )

    def _check_limits(self, owner: str) -> None:
        for limit, count, whose in (
            (self._limits.max_sandboxes_per_owner, self.store.count_alive(owner), f"{owner} has"),
            (self._limits.max_sandboxes, self.store.count_alive(), "this server has"),
        ):
            if count >= limit:
                raise LimitReached(
                    f"{whose} {count} sandboxes, and the limit is {limit}",
                    hint="delete one first: cloche ls, cloche rm",
                    details={"limit": limit, "count": count},
                )

    # Watching

    async def adopt(self, row: SandboxRow, driver: Driver) -> None:
        """Of a server before this one: listens again where its guest dials."""
        uplink = await self.hub.listen(expected_of(row))
        self._hold(Live(row=row, driver=driver, uplink=uplink))

    def _hold(self, live: Live) -> None:
        self._live[live.row.id] = live
        live.watch = asyncio.create_task(self._watch(live))

    async def _watch(self, live: Live) -> None:
        sandbox_id = live.row.id
        try:
            status = await live.driver.wait_exit(sandbox_id)
        except ClocheError as error:
            _LOG.error("the watch of a sandbox failed", extra={"sandbox_id": sandbox_id}, exc_info=error)
            return
        if sandbox_id in self._deleting:
            return
        failure = failure_of(status)
        _LOG.warning("sandbox ended", extra={"sandbox_id": sandbox_id, "reason": failure.reason})
        self._live.pop(sandbox_id, None)
        live.row = self.store.update(live.row, state=SandboxState.FAILED, ended_us=self._clock(), failure=failure)
        self.hub.remove(sandbox_id)
        await self._destroy(live.driver, sandbox_id)

    # Changing

    def update(self, principal: Principal, sandbox_id: str, wanted: SandboxUpdate) -> SandboxRow:
        """Null leaves a field as it is; labels and metadata are replaced as a whole."""
        row = self.get(principal, sandbox_id)
        changes = {name: value for name, value in wanted.model_dump().items() if value is not None}
        if not changes:
            return row
        changed = self.store.update(row, **changes)
        if sandbox_id in self._live:
            self._live[sandbox_id].row = changed
        return changed

    # Ending

    async def delete(self, principal: Principal, sandbox_id: str) -> SandboxRow:
        """Bounded. Deletes of one sandbox share one task: the first answers, the others get `Gone`."""
        under_way = self._deleting.get(sandbox_id)
        row = self.get(principal, sandbox_id)
        if under_way is not None:
            await asyncio.shield(under_way)
            raise _gone(sandbox_id)
        task = asyncio.create_task(self._delete(row))
        self._deleting[sandbox_id] = task
        task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    async def _delete(self, row: SandboxRow) -> SandboxRow:
        try:
            if (create := self._creating.get(row.id)) is not None:
                create.cancel()
                await asyncio.wait([create])
                row = self.store.get(row.id) or row
            live = self._live.get(row.id)
            driver = self.drivers.get(row.driver)
            if driver is not None and not await self._destroy(driver, row.id):
                if live is not None and live.watch is not None and live.watch.done():
                    self._hold(live)
                raise InternalError(
                    f"sandbox {row.id} could not be removed within {self._limits.destroy_timeout_s:g} s",
                    hint="try again; the server's log says more",
                )
            if live is not None and live.watch is not None:
                live.watch.cancel()
            self._live.pop(row.id, None)
            self.hub.remove(row.id)
            # Values of env may be secrets; nothing needs them any more.
            deleted = self.store.update(
                row, state=SandboxState.DELETED, ended_us=row.ended_us or self._clock(), env=dict.fromkeys(row.env, "")
            )
            _LOG.info("sandbox deleted", extra={"sandbox_id": row.id})
            return deleted
        finally:
            self._deleting.pop(row.id, None)

    async def _destroy(self, driver: Driver, sandbox_id: str) -> bool:
        try:
            async with asyncio.timeout(self._limits.destroy_timeout_s):
                await driver.destroy(sandbox_id)
        except Exception:
            _LOG.exception("a sandbox could not be removed", extra={"sandbox_id": sandbox_id})
            return False
        return True

    def fail(self, row: SandboxRow, failure: Failure, *, keep_name: bool = True) -> None:
        """For recovery: the sandbox is not there any more."""
        self.hub.remove(row.id)
        name = row.name if keep_name else None
        self.store.update(row, state=SandboxState.FAILED, ended_us=self._clock(), failure=failure, name=name)

    async def forget_start(self, row: SandboxRow, failure: Failure) -> None:
        """For recovery: a start that a dead server left half-done. Its name and idempotency key are free again."""
        self._idempotency.forget(row.id)
        self.fail(row, failure, keep_name=False)

    async def close(self) -> None:
        """Waits for what is being created and deleted, then stops watching."""
        pending: list[asyncio.Task[Any]] = [*self._creating.values(), *self._deleting.values()]
        if pending:
            await asyncio.wait(pending, timeout=self._limits.start_timeout_s)
        watches = [live.watch for live in self._live.values() if live.watch is not None]
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        self._live.clear()


def _gone(sandbox_id: str) -> Gone:
    return Gone(f"sandbox {sandbox_id} was deleted", details={"kind": "sandbox", "id": sandbox_id})


def _retrieve(task: asyncio.Task[Any]) -> None:
    """The caller may be gone; an error it did not fetch is in the log already."""
    if not task.cancelled():
        task.exception()
