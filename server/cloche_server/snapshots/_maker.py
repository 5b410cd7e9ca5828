"""From something saved to sandboxes: one from a snapshot, or many from an instant of a running one."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from cloche.errors import ClocheError, InvalidRequest
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
from cloche_server.ids import new_request_id
from cloche_server.sandboxes import Claim, SandboxService, SavedIdentity
from cloche_server.snapshots._library import SnapshotLibrary
from cloche_server.snapshots._saver import MEMORY, Saver, check_memory
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
    """Owns nothing: creates are tasks of the sandbox service."""

    def __init__(self, library: SnapshotLibrary, sandboxes: SandboxService, saver: Saver) -> None:
        self._library = library
        self._sandboxes = sandboxes
        self._saver = saver

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
        try:
            source, saved = await self._saver.checkpoint(row.id, directory)
            seed = _seed_of_fork(source, saved.identity, memory=memory and saved.checkpoint.memory)
            children = await self._children(source, wanted, seed, directory, planned)
        finally:
            await asyncio.shield(asyncio.to_thread(self._library.files.remove, directory.stem))
        return ForkResult(
            children=children, paused_s=saved.checkpoint.pause_s, ready_s=round(time.monotonic() - begun, 6)
        )

    async def _children(
        self, source: SandboxRow, wanted: Fork, seed: Seed, directory: Path, planned: Planned | None
    ) -> list[ForkChild]:
        turn = asyncio.Semaphore(AT_ONCE)

        async def child(index: int) -> ForkChild:
            async with turn:
                claim = None if planned is None else partial(planned, index)
                return await self._child(index, source, wanted, seed, directory, claim)

        return list(await asyncio.gather(*(child(index) for index in range(wanted.count))))

    async def _child(
        self, index: int, source: SandboxRow, wanted: Fork, seed: Seed, directory: Path, claim: Claim | None
    ) -> ForkChild:
        try:
            self._sandboxes.check_limits(source.owner)
            row = self._row(source.owner, _create_of_child(index, source, wanted), seed)
            row = await self._start(replace(row, metadata=source.metadata), directory, seed, claim)
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

    async def _start(self, row: SandboxRow, directory: Path, seed: Seed, claim: Claim | None) -> SandboxRow:
        end_all = not seed.memory and MEMORY in row.capabilities
        return await self._sandboxes.create_saved(
            row, directory, seed.identity, reason="fork", claim=claim, end_all=end_all
        )


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


def _seed_of_fork(source: SandboxRow, identity: SavedIdentity | None, *, memory: bool) -> Seed:
    return Seed(
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
