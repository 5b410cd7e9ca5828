"""Pools: made, changed, deleted, filled, and asked for a sandbox by every create."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cloche.errors import ClocheError, Forbidden, LimitReached, NotFound
from cloche.models import Intent, IntentCreate, Pool, PoolCreate, SandboxCreate
from cloche_server.auth import Principal
from cloche_server.clock import Clock, now_us, to_datetime
from cloche_server.pools._claims import Claims
from cloche_server.pools._foreground import Foreground
from cloche_server.pools._keeper import Keeper
from cloche_server.pools._pool import LivePool
from cloche_server.pools.parked import Parked
from cloche_server.pools.recipe import DEFAULT_IMAGE, Recipe, create_of, may_be_warm, recipe_of_row
from cloche_server.routing import invalid
from cloche_server.sandboxes import DriverSet, Images
from cloche_server.sandboxes._creating import check_policy
from cloche_server.state import IdempotencyClaim, PoolRow, PoolStore, SandboxRow
from cloche_server.templates import TemplateService, Workshop
from cloche_server.templates._spec import parse_reference
from cloche_server.templates._starting import THEIRS


class Places(Protocol):
    """How many sandboxes there may be."""

    def room(self) -> int:
        """Sandboxes the server may have besides those that somebody has."""

    def check_limits(self, owner: str) -> None:
        """`LimitReached` unless the owner may have one more."""


@dataclass(frozen=True, slots=True)
class _Made:
    """What a create asks for, resolved."""

    recipe: Recipe
    env: dict[str, str]


class PoolService:
    """`start` when the sandboxes of before are found again; `close` at the end: ready ones stay, for the next server."""

    def __init__(
        self,
        *,
        store: PoolStore,
        workshop: Workshop,
        places: Places,
        templates: TemplateService,
        drivers: DriverSet,
        images: Images,
        max_per_owner: int,
        clock: Clock = now_us,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._places = places
        self._templates = templates
        self._workshop = workshop
        self._drivers = drivers
        self._images = images
        self._max_per_owner = max_per_owner
        self._clock = clock
        self._monotonic = monotonic
        self._pools: dict[tuple[str, str], LivePool] = {}
        self.foreground = Foreground(monotonic)
        self._keeper = Keeper(self, workshop, self.foreground, monotonic)
        self._claims = Claims(store, workshop, clock, monotonic)
        templates.pools_of = self.pools_of
        templates.changed = self._keeper.wake

    async def start(self, parked: Iterable[SandboxRow]) -> None:
        """``parked``: those that run, of a server before this one. What belongs to no pool is removed."""
        for row in self._store.all():
            pool = LivePool(row)
            self._pools[pool.key] = pool
            self.refresh(pool)
        for found in parked:
            pool_of_it = self._pools.get((found.owner, found.pool or ""))
            if pool_of_it is None:
                await self._workshop.discard(found.id)
            else:
                age_s = (self._clock() - found.created_us) / 1e6
                since = self._monotonic() - max(0.0, age_s)
                self._keeper.adopt(pool_of_it, Parked(found.id, recipe_of_row(found), since, checked=0.0))
        self._store.forget_ended()
        self._keeper.start()

    async def close(self) -> None:
        await self._keeper.close()

    # The API

    def put(self, principal: Principal, name: str, wanted: PoolCreate) -> Pool:
        """Made or changed. `InvalidRequest`, `NotFound` for a template or image that is not there, `Forbidden` for a shared
        one of somebody who is no admin, `LimitReached`."""
        owner = principal.owner
        _check(wanted)
        if wanted.shared and not principal.sees_all:
            raise Forbidden("only admins may share a pool with every owner", details={"owner": owner})
        pool = self._pools.get((owner, name))
        if pool is None:
            self._check_limit(owner)
        row = _row_of(owner, name, wanted, pool.row.created_us if pool else self._clock())
        self._recipe_of_pool(row)
        self._store.put(row)
        if pool is None:
            pool = self._pools[owner, name] = LivePool(row)
        else:
            pool.row, pool.failures, pool.not_before = row, 0, 0.0
        self.refresh(pool)
        self._keeper.wake()
        return self._model(pool)

    def _check_limit(self, owner: str) -> None:
        count = sum(1 for pool in self._pools.values() if pool.row.owner == owner)
        if count >= self._max_per_owner:
            raise LimitReached(
                f"{owner} has {count} pools, and the limit is {self._max_per_owner}",
                hint="delete one first: cloche pools ls, cloche pools rm",
                details={"limit": self._max_per_owner, "count": count},
            )

    def get(self, owner: str, name: str) -> Pool:
        """The owner's own, else a shared one."""
        shared = (pool for pool in self._pools.values() if pool.row.shared and pool.row.name == name)
        return self._model(self._pools.get((owner, name)) or next(shared, None) or self._find(owner, name))

    def list(self, owner: str | None) -> list[Pool]:
        """By owner and name, with the shared ones. None: of all owners."""
        found = [pool for pool in self._pools.values() if owner is None or _serves(pool, owner)]
        return [self._model(pool) for pool in sorted(found, key=lambda pool: pool.key)]

    async def delete(self, owner: str, name: str) -> Pool:
        """With all that are ready in it."""
        pool = self._find(owner, name)
        self._store.delete(pool.row)
        del self._pools[pool.key]
        gone = self._model(pool)
        for one in pool.stock.all():
            if pool.stock.discard(one.sandbox_id) is not None:
                await self._workshop.discard(one.sandbox_id)
        return gone

    def intend(self, owner: str, wanted: IntentCreate) -> Intent:
        """The pool that such a create would be served from is filled for it, as far as it may be."""
        if wanted.template is not None and wanted.image is not None:
            raise invalid([("image", "a template has its own: give one of the two")])
        body = {"image": wanted.image} if wanted.image is not None else {}
        create = SandboxCreate.model_validate({"template": wanted.template, **body})
        pool = self._serving(owner, self._resolve(owner, create).recipe)
        if pool is not None:
            pool.intents.add(wanted.count, self._monotonic() + wanted.within_s)
            self._keeper.wake()
        expires = to_datetime(self._clock() + int(wanted.within_s * 1e6))
        return Intent(pool=None if pool is None else pool.row.name, expires_at=expires)

    def pools_of(self, owner: str, name: str, version: int) -> Sequence[str]:
        """Pools that would have nothing to be filled from without this version."""
        users = []
        for pool in self._pools.values():
            if pool.row.owner != owner or pool.row.template is None:
                continue
            of, wanted = parse_reference(pool.row.template)
            if of == name and (wanted == version or (wanted is None and _is(pool, name, version))):
                users.append(pool.row.name)
        return sorted(users)

    # Creates

    def claim(
        self, owner: str, wanted: SandboxCreate, key: IdempotencyClaim | None = None, *, begin: bool = False
    ) -> SandboxRow | None:
        """A ready sandbox that is now this create's; None: there is none, so make one. ``begin``: nobody else wants
        anything, so its guest hears of it at once.

        Raises:
            NotFound, Conflict, LimitReached: as a create does.
        """
        if not may_be_warm(wanted) or not self._pools:
            return None
        made = self._resolve(owner, wanted)
        pool = self._serving(owner, made.recipe)
        if pool is None:
            return None
        self._check_policy(pool, wanted)
        now = self._monotonic()
        pool.demand.seen(now)
        pool.intents.met(now)
        self._places.check_limits(owner)
        row = self._claims.claim(pool, owner, wanted, made.env, key, begin)
        self._keeper.wake()
        if row is None:
            pool.misses += 1
        else:
            pool.claims += 1
        return row

    def _check_policy(self, pool: LivePool, wanted: SandboxCreate) -> None:
        """As for one that is made: `UnsupportedCapability`."""
        lives = (self._workshop.parked(one.sandbox_id) for one in pool.stock.all())
        live = next((live for live in lives if live is not None), None)
        if live is not None:
            check_policy(wanted.lifecycle, live.driver)

    def _serving(self, owner: str, recipe: Recipe) -> LivePool | None:
        """The pool with that recipe, which must not be somebody else's template of the same name. Of several one with
        something ready, rather the owner's own, rather the one with most."""
        found = [pool for pool in self._pools.values() if _serves(pool, owner) and pool.recipe == recipe]
        return max(found, key=lambda pool: (bool(pool.stock), pool.row.owner == owner, len(pool.stock)), default=None)

    def _resolve(self, owner: str, wanted: SandboxCreate) -> _Made:
        if wanted.template is None:
            return _Made(self._recipe_of_image(wanted), dict(wanted.env))
        row = self._templates.ready(owner, wanted.template)
        return _Made(Recipe(row.reference), {**row.spec.env, **wanted.env})

    def _recipe_of_image(self, wanted: SandboxCreate) -> Recipe:
        digest = self._images.resolve(wanted.image).digest
        return Recipe(None, digest, self._drivers.choose(wanted.driver).name, wanted.resources, wanted.sudo)

    # The keeper

    def all(self) -> Sequence[LivePool]:
        return tuple(self._pools.values())

    def refresh(self, pool: LivePool) -> None:
        """None while its template has no version that is ready, or its image is not there."""
        try:
            pool.recipe = self._recipe_of_pool(pool.row)
        except ClocheError:
            pool.recipe = None

    def _recipe_of_pool(self, row: PoolRow) -> Recipe:
        if row.template is None:
            return self._recipe_of_image(create_of(row))
        return Recipe(self._templates.ready(row.owner, row.template).reference)

    def room(self, pool: LivePool) -> int:
        others = sum(other.size for other in self._pools.values() if other is not pool)
        return self._places.room() - others

    def _model(self, pool: LivePool) -> Pool:
        return pool.to_model(self._monotonic(), self.room(pool))

    def _find(self, owner: str, name: str) -> LivePool:
        pool = self._pools.get((owner, name))
        if pool is None:
            raise NotFound(f"there is no pool {name!r}", details={"kind": "pool", "id": name})
        return pool


def _is(pool: LivePool, name: str, version: int) -> bool:
    return pool.recipe is not None and pool.recipe.template == f"{name}@{version}"


def _serves(pool: LivePool, owner: str) -> bool:
    return pool.row.owner == owner or pool.row.shared


def _check(wanted: PoolCreate) -> None:
    """`InvalidRequest`."""
    problems: list[tuple[str, str]] = []
    if wanted.min > wanted.max:
        problems.append(("min", f"must not be over max, which is {wanted.max}"))
    if wanted.template is not None:
        said = [name for name in THEIRS if name in wanted.model_fields_set and getattr(wanted, name) is not None]
        problems += [(name, "a template has its own: give one of the two") for name in said]
        if wanted.shared:
            problems.append(("shared", "templates are their owner's: a shared pool is of an image"))
    if problems:
        raise invalid(problems)


def _row_of(owner: str, name: str, wanted: PoolCreate, created_us: int) -> PoolRow:
    row = PoolRow(
        owner,
        name,
        wanted.template,
        None,
        wanted.min,
        wanted.max,
        int(wanted.max_age_s),
        created_us,
        shared=wanted.shared,
    )
    if wanted.template is not None:
        return row
    return replace(
        row,
        image=wanted.image or DEFAULT_IMAGE,
        driver=wanted.driver,
        resources=wanted.resources.model_dump(),
        sudo=wanted.sudo,
    )
