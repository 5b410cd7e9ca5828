"""New sandboxes: from an image, or from something saved. A create that fails leaves nothing behind."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from cloche.errors import LimitReached, UnsupportedCapability
from cloche.models import LifecyclePolicy, PolicyAction, SandboxCreate, SandboxState
from cloche_server.auth import hash_secret
from cloche_server.drivers import Driver
from cloche_server.ids import new_epoch, new_sandbox_id, new_uplink_token
from cloche_server.lifecycle import Event
from cloche_server.sandboxes._changes import retrieve
from cloche_server.sandboxes._registry import Registry, gone
from cloche_server.sandboxes._seams import ResolvedImage, Volumes
from cloche_server.sandboxes._start import Life, start_sandbox
from cloche_server.sandboxes._watching import Watching
from cloche_server.state import SandboxRow

_LOG: Final = logging.getLogger("cloche.sandboxes")

Claim = Callable[[str], None]
"""Told the id as soon as the row exists."""


class Creating:
    """Owns the creates under way; a caller that goes away stops none of them."""

    def __init__(self, registry: Registry, watching: Watching, volumes: Volumes) -> None:
        self._registry = registry
        self._watching = watching
        self._volumes = volumes
        self._under_way: dict[str, asyncio.Task[SandboxRow]] = {}
        self._coming: Counter[str] = Counter()

    async def create(self, owner: str, wanted: SandboxCreate, claim: Claim | None, pool: str | None) -> SandboxRow:
        """From an image. One for a pool counts to no limit: pools bound themselves."""
        if pool is None:
            self.check_limits(owner)
        registry = self._registry
        driver = registry.drivers.choose(wanted.driver)
        image = registry.images.resolve(wanted.image)
        check_policy(wanted.lifecycle, driver)
        check_volumes(wanted, driver)
        token = new_uplink_token()
        row = replace(self.new_row(owner, wanted, driver, image, token), pool=pool)
        return await self.insert(row, lambda: self._start(row, driver, image, token), claim)

    async def insert(self, row: SandboxRow, start: Callable[[], Awaitable[None]], claim: Claim | None) -> SandboxRow:
        """The row of a new sandbox, then ``start``, in a task that a delete cancels. If it fails, the row is gone again."""
        self._registry.store.insert(row)
        if claim is not None:
            claim(row.id)
        task = asyncio.create_task(self._finish(row, start), name=f"create {row.id}")
        self._under_way[row.id] = task
        task.add_done_callback(retrieve)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise gone(row.id) from None
            raise

    async def _finish(self, row: SandboxRow, start: Callable[[], Awaitable[None]]) -> SandboxRow:
        try:
            await start()
        except BaseException:
            self._registry.store.remove(row.id)
            raise
        finally:
            self._under_way.pop(row.id, None)
        _LOG.info("sandbox started", extra={"sandbox_id": row.id, "driver": row.driver})
        return self._registry.known(row.id)

    async def _start(self, row: SandboxRow, driver: Driver, image: ResolvedImage, token: str) -> None:
        registry, limits = self._registry, self._registry.limits
        life = Life(row, driver, image, token, mounts=await self._volumes.mounts(row.owner, row.volumes))
        live = await start_sandbox(
            life, registry.hub, start_s=limits.start_timeout_s, destroy_s=limits.destroy_timeout_s
        )
        self._watching.hold(live)
        registry.happen(row.id, Event.STARTED, started_us=registry.clock())

    def new_row(
        self, owner: str, wanted: SandboxCreate, driver: Driver, image: ResolvedImage, token: str
    ) -> SandboxRow:
        """Creating, and not in the store yet."""
        now = self._registry.clock()
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
            volumes=self._volumes.resolve(owner, wanted.volumes),
        )

    def check_limits(self, owner: str, more: int = 1) -> None:
        """`LimitReached` unless ``owner`` may have ``more`` sandboxes. Suspended and stopped ones count, but do not run."""
        limits, counts = self._registry.limits, self._registry.store.count(owner)
        coming = self._coming.total()
        for limit, count, whose, what in (
            (limits.max_sandboxes_per_owner, counts.of_owner + self._coming[owner], f"{owner} has", "sandboxes"),
            (limits.max_sandboxes, counts.alive + coming, "this server has", "sandboxes"),
            (limits.max_running, counts.running + coming, "this server has", "running sandboxes"),
        ):
            if count + more > limit:
                raise LimitReached(
                    f"{whose} {count} {what}, and the limit is {limit}",
                    hint="delete one first: cloche ls, cloche rm",
                    details={"limit": limit, "count": count},
                )

    @contextmanager
    def reserve(self, owner: str) -> Iterator[None]:
        """`check_limits`, and a place that stays taken while the body makes the row: it may wait in between."""
        self.check_limits(owner)
        self._coming[owner] += 1
        try:
            yield
        finally:
            self._coming[owner] -= 1

    def room(self) -> int:
        """Sandboxes that may run besides those that are somebody's. Reserved places do not count: whoever gets one of a
        pool's takes that one's place with it."""
        limits, counts = self._registry.limits, self._registry.store.count()
        return min(limits.max_sandboxes - counts.alive, limits.max_running - counts.running)

    async def cancel(self, sandbox_id: str) -> None:
        """The create of this sandbox, if it is under way; returns when all of it is undone."""
        task = self._under_way.get(sandbox_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def close(self, bound_s: float) -> None:
        """Waits for what is being created."""
        if self._under_way:
            await asyncio.wait(list(self._under_way.values()), timeout=bound_s)


def check_policy(policy: LifecyclePolicy, driver: Driver) -> None:
    """`UnsupportedCapability` for one that would suspend what cannot be suspended."""
    suspends = [
        policy.idle_timeout_s is not None and policy.idle_action is PolicyAction.SUSPEND,
        policy.max_lifetime_s is not None and policy.lifetime_action is PolicyAction.SUSPEND,
    ]
    if any(suspends) and "memory_snapshot" not in driver.capabilities:
        raise UnsupportedCapability(
            f"the driver {driver.name} cannot suspend, and the lifecycle asks for it",
            hint="use the action stop, which keeps files, or the driver gvisor",
            details={"driver": driver.name, "capability": "memory_snapshot"},
        )


def check_volumes(wanted: SandboxCreate, driver: Driver) -> None:
    """`UnsupportedCapability` for volumes where the driver has none."""
    if wanted.volumes and "volumes" not in driver.capabilities:
        raise UnsupportedCapability(
            f"the driver {driver.name} cannot attach volumes",
            hint="use another driver, or copy the files",
            details={"driver": driver.name, "capability": "volumes"},
        )
