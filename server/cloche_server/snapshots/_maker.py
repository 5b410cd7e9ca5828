"""From something saved to sandboxes: one from a snapshot, or many from an instant of a running one."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from cloche.errors import ClocheError, InvalidRequest, SandboxStartFailed
from cloche.models import (
    Fork,
    ForkChild,
    ForkResult,
    LifecyclePolicy,
    Origin,
    Resources,
    SandboxCreate,
    VolumeAttachment,
)
from cloche_server.auth import Principal
from cloche_server.drivers import WhenSaved
from cloche_server.ids import new_request_id
from cloche_server.sandboxes import Claim, SandboxService, SavedIdentity
from cloche_server.snapshots._library import SnapshotLibrary
from cloche_server.snapshots._saver import MEMORY, Ahead, Saver, check_memory
from cloche_server.state import SandboxRow, SnapshotRow

Planned = Callable[[int, str], None]
"""Place and id of a child."""

_LOG: Final = logging.getLogger("cloche.snapshots")

AT_ONCE: Final = 4
"""Children of one fork that start at the same time. More would not be ready sooner on a few cores, and each later."""

MAX_ENV: Final = 1024
"""As `cloche.models.Env` has it."""

IN_THE_SNAPSHOT: Final = ("image", "driver", "resources", "sudo")
"""What a create from a snapshot may not say."""


@dataclass(frozen=True, slots=True)
class Seed:
    """What a sandbox is made from, whether it is a snapshot or was saved for a fork. ``memory``: is what was in it to go
    on?"""

    driver: str
    image: str
    image_digest: str
    resources: Resources
    sudo: bool
    env: dict[str, str]
    volumes: list[VolumeAttachment]
    identity: SavedIdentity | None
    memory: bool
    origin: Origin
    parent: str | None


class Maker:
    """Creates are tasks of the sandbox service; what was saved for a fork is removed here, after it is told."""

    def __init__(self, library: SnapshotLibrary, sandboxes: SandboxService, saver: Saver) -> None:
        self._library = library
        self._sandboxes = sandboxes
        self._saver = saver
        self._discarding: set[asyncio.Task[None]] = set()

    async def create(
        self, principal: Principal, wanted: SandboxCreate, claim: Claim | None, *, pool: str | None = None
    ) -> SandboxRow:
        """From ``wanted.snapshot``. Raises what `SandboxService.create` does, and what `SnapshotLibrary.using` does."""
        assert wanted.snapshot is not None
        _refuse_fixed(wanted)
        snapshot, owner = self._library.get(principal, wanted.snapshot), principal.owner
        with self._sandboxes.reserve(owner) if pool is None else nullcontext():
            async with self._library.using(snapshot) as directory:
                seed = seed_of(snapshot)
                row = replace(self._row(owner, wanted, seed), pool=pool)
                return await self._start(row, directory, seed, claim)

    async def create_hidden(self, snapshot: SnapshotRow, pool: str) -> SandboxRow:
        """For looking at it: nobody sees it, it counts to no limit, and it cannot write into volumes."""
        async with self._library.using(snapshot) as directory:
            seed = seed_of(snapshot)
            row = self._row(snapshot.owner, SandboxCreate(lifecycle=LifecyclePolicy()), seed)
            volumes = [volume.model_copy(update={"read_only": True}) for volume in row.volumes]
            return await self._start(replace(row, pool=pool, volumes=volumes), directory, seed, None)

    async def fork(self, row: SandboxRow, wanted: Fork, planned: Planned | None = None) -> ForkResult:
        """One instant of ``row``, then as many sandboxes. Raises only what keeps all of them from being made. ``planned``
        is told the place and id of each, as soon as its row exists."""
        begun = time.monotonic()
        _check_lists(wanted)
        memory = check_memory(row, wanted.memory)
        self._sandboxes.check_limits(row.owner)
        directory = self._library.files.unfinished(f"fork-{secrets.token_hex(8)}")
        brood = _Brood(lambda seed, saved: self._children(wanted, seed, directory, saved, planned))
        try:
            ahead = Ahead(lambda source, identity: brood.begin(_seed_of_fork(source, identity, memory)), brood.saved)
            source, done = await self._saver.checkpoint(row.id, directory, ahead=ahead)
            if not brood.has_begun:
                brood.begin(_seed_of_fork(source, done.identity, memory and done.checkpoint.memory))
                brood.saved()
            children = await brood.grown()
        except BaseException:
            await asyncio.shield(self._give_up(brood))
            raise
        finally:
            self._discard(directory)
        return ForkResult(
            children=children, paused_s=done.checkpoint.pause_s, ready_s=round(time.monotonic() - begun, 6)
        )

    async def _give_up(self, brood: _Brood) -> None:
        """Nobody was told of the children: no trace of them is left."""
        for child in await brood.failed():
            if child.sandbox is not None:
                await self._sandboxes.end(child.sandbox.id)
                self._sandboxes.forget(child.sandbox.id)

    def _discard(self, directory: Path) -> None:
        """Of 100 MB it takes 10 ms or more, and nobody waits for it. A new server removes what is left."""
        task = asyncio.create_task(asyncio.to_thread(self._library.files.remove, directory.stem))
        self._discarding.add(task)
        task.add_done_callback(self._discarding.discard)

    async def close(self, bound_s: float) -> None:
        """Waits for what is being removed."""
        if self._discarding:
            await asyncio.wait(self._discarding, timeout=bound_s)

    async def _children(
        self, wanted: Fork, seed: _ForkSeed, directory: Path, saved: WhenSaved, planned: Planned | None
    ) -> list[ForkChild]:
        turn = asyncio.Semaphore(AT_ONCE)

        async def child(index: int) -> ForkChild:
            async with turn:
                claim = None if planned is None else partial(planned, index)
                return await self._child(index, wanted, seed, directory, saved, claim)

        return list(await asyncio.gather(*(child(index) for index in range(wanted.count))))

    async def _child(
        self, index: int, wanted: Fork, of: _ForkSeed, directory: Path, saved: WhenSaved, claim: Claim | None
    ) -> ForkChild:
        source, seed = of.source, of.seed
        try:
            self._sandboxes.check_limits(source.owner)
            row = self._row(source.owner, _create_of_child(index, source, wanted), seed)
            row = await self._start(replace(row, metadata=source.metadata), directory, seed, claim, saved)
        except ClocheError as error:
            body = error.to_body(new_request_id())
            return ForkChild(index=index, sandbox=None, error=body.model_dump(mode="json"))
        return ForkChild(index=index, sandbox=row.to_model())

    def _row(self, owner: str, wanted: SandboxCreate, seed: Seed) -> SandboxRow:
        sandboxes = self._sandboxes
        driver = sandboxes.drivers.choose(seed.driver)
        image = sandboxes.registry.images.resolve(seed.image_digest)
        row = sandboxes.new_row(owner, wanted, driver, image)
        return replace(
            row,
            image=seed.image,
            resources=seed.resources,
            sudo=seed.sudo,
            env=_merged(seed.env, wanted.env),
            volumes=seed.volumes,
            origin=seed.origin,
            parent=seed.parent,
        )

    async def _start(
        self, row: SandboxRow, directory: Path, seed: Seed, claim: Claim | None, saved: WhenSaved | None = None
    ) -> SandboxRow:
        end_all = not seed.memory and MEMORY in row.capabilities
        return await self._sandboxes.create_saved(
            row, directory, seed.identity, reason="fork", claim=claim, end_all=end_all, saved=saved
        )


@dataclass(frozen=True, slots=True)
class _ForkSeed:
    """``source`` is its row at the instant of the fork."""

    source: SandboxRow
    seed: Seed


class _Brood:
    """The children of one fork, which may begin while their source is being saved. Knows whether it is."""

    def __init__(self, make: Callable[[_ForkSeed, WhenSaved], Coroutine[None, None, list[ForkChild]]]) -> None:
        self._make = make
        self._saved: WhenSaved = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[list[ForkChild]] | None = None

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    def begin(self, seed: _ForkSeed) -> None:
        self._task = asyncio.create_task(self._make(seed, self._saved), name=f"children of {seed.source.id}")

    def saved(self) -> None:
        """What they are made from is whole."""
        self._saved.set_result(None)

    async def grown(self) -> list[ForkChild]:
        assert self._task is not None
        return await asyncio.shield(self._task)

    async def failed(self) -> list[ForkChild]:
        """What they are made from will never be whole, or nobody wants them. Returns when no start is under way."""
        if not self._saved.done():
            self._saved.set_exception(SandboxStartFailed("what it was to be made from could not be saved"))
            self._saved.exception()
        return [] if self._task is None else await self._task


def _merged(env: dict[str, str], more: dict[str, str]) -> dict[str, str]:
    merged = env | more
    if len(merged) > MAX_ENV:
        raise invalid_field("env", f"{len(merged)} variables with those that are there; {MAX_ENV} are possible")
    return merged


def seed_of(snapshot: SnapshotRow) -> Seed:
    return Seed(
        driver=snapshot.driver,
        image=snapshot.image,
        image_digest=snapshot.image_digest,
        resources=snapshot.resources,
        sudo=snapshot.sudo,
        env=snapshot.env,
        volumes=snapshot.volumes,
        identity=SavedIdentity.from_json(snapshot.identity),
        memory=snapshot.memory,
        origin=Origin(kind="snapshot", id=snapshot.id),
        parent=snapshot.id,
    )


def _seed_of_fork(source: SandboxRow, identity: SavedIdentity | None, memory: bool) -> _ForkSeed:
    seed = Seed(
        driver=source.driver,
        image=source.image,
        image_digest=source.image_digest,
        resources=source.resources,
        sudo=source.sudo,
        env=source.env,
        volumes=source.volumes,
        identity=identity,
        memory=memory,
        origin=Origin(kind="fork", id=source.id),
        parent=source.parent,
    )
    return _ForkSeed(source, seed)


def _create_of_child(index: int, source: SandboxRow, wanted: Fork) -> SandboxCreate:
    lifecycle: LifecyclePolicy = source.lifecycle if wanted.lifecycle is None else wanted.lifecycle
    return SandboxCreate(
        name=wanted.names[index] if wanted.names else None,
        env=wanted.env | (wanted.envs[index] if wanted.envs else {}),
        labels=source.labels if wanted.labels is None else wanted.labels,
        lifecycle=lifecycle,
    )


def _check_lists(wanted: Fork) -> None:
    for name, length in (("names", len(wanted.names)), ("envs", len(wanted.envs))):
        if length not in (0, wanted.count):
            raise invalid_field(name, f"{length} entries; give one for each of the {wanted.count} children, or none")


def _refuse_fixed(wanted: SandboxCreate) -> None:
    """Only what was said counts: a default that was left out asks for nothing."""
    said: list[str] = [
        name for name in IN_THE_SNAPSHOT if name in wanted.model_fields_set and getattr(wanted, name) is not None
    ]
    if wanted.template is not None:
        said.append("template")
    if wanted.volumes:
        said.append("volumes")
    if said:
        raise invalid_field(said[0], f"{said[0]} is in the snapshot, and cannot be chosen for a sandbox made from one")


def invalid_field(field: str, problem: str) -> InvalidRequest:
    return InvalidRequest(problem, details={"errors": [{"field": field, "problem": problem}]})
