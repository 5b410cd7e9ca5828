"""Starting one life of a sandbox: the order of the steps, and undoing them all when one fails."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from cloche.errors import ClocheError, SandboxStartFailed
from cloche.models.guest import EndAll, RebirthReason
from cloche_server.drivers import Driver, SandboxSpec, VolumeMount, WhenSaved
from cloche_server.relay import GuestCall, call_guest
from cloche_server.sandboxes._live import Live
from cloche_server.sandboxes._saved import SavedIdentity
from cloche_server.sandboxes._seams import ResolvedImage
from cloche_server.state import SandboxRow
from cloche_server.uplink import Expected, Uplink, UplinkHub

_LOG: Final = logging.getLogger("cloche.sandboxes")

END_ALL: Final = GuestCall("POST", "/v1/end-all", statuses={204}, bound_s=60)
BEGIN_ANEW: Final = replace(END_ALL, body=EndAll(start_services=True).model_dump_json().encode())
"""To a guest out of a checkpoint with memory of which files alone are wanted: as one that has just started."""
HEALTH: Final = GuestCall("GET", "/v1/health", statuses={200}, bound_s=10)


@dataclass(frozen=True, slots=True)
class Source:
    """What a life begins from, when it is not the image alone. ``identity`` None: files only, and a new guest.
    ``end_all``: contexts, processes and terminals in its memory end before anybody sees them."""

    directory: Path
    identity: SavedIdentity | None
    reason: RebirthReason
    end_all: bool = False
    saved: WhenSaved | None = None
    """See `Driver.start`."""


@dataclass(frozen=True, slots=True)
class Life:
    """Everything about one life that is to begin. ``token`` is what a new guest proves itself with."""

    row: SandboxRow
    driver: Driver
    image: ResolvedImage
    token: str
    source: Source | None = None
    mounts: Sequence[VolumeMount] = ()

    @property
    def identity(self) -> SavedIdentity | None:
        return None if self.source is None else self.source.identity


def expected_of(row: SandboxRow) -> Expected:
    """Of a guest that was told already who it is, or was claimed and not told yet."""
    now = Expected(sandbox_id=row.id, epoch=row.epoch, token_hash=row.token_hash, env=row.env, sudo=row.sudo)
    known = row.known_as
    return now if known is None else replace(now, former_epoch=known["epoch"], former_env=known["env"])


def expected_first(life: Life) -> Expected:
    """Of the guest a life begins with. Each gets a seed of its own."""
    identity, row = life.identity, life.row
    if identity is None or life.source is None:
        return expected_of(row)
    return Expected(
        sandbox_id=row.id,
        epoch=row.epoch,
        token_hash=identity.session_hash,
        env=row.env,
        sudo=row.sudo,
        previous=(identity.sandbox_id, identity.epoch),
        seed=secrets.token_hex(32),
        reason=life.source.reason,
    )


async def start_sandbox(life: Life, hub: UplinkHub, *, start_s: float, destroy_s: float) -> Live:
    """Returns when the guest said hello and answered a health question; bounded by ``start_s``.

    On any failure, a cancellation included, nothing is left: no process, mount, directory or socket.
    """
    row, driver = life.row, life.driver
    try:
        uplink = await hub.listen(expected_first(life))
        saved = None if life.source is None else life.source.saved
        async with _bounded(start_s, saved):
            await driver.start(_spec(life, uplink), probe=_Probe(uplink), saved=saved)
            if life.source is not None and life.source.end_all:
                (await call_guest(uplink.pool, BEGIN_ANEW, 65_536)).close()
        return Live(row=row, driver=driver, uplink=uplink, active_us=row.active_us)
    except BaseException as error:
        await asyncio.shield(_undo(row.id, driver, hub, destroy_s))
        if isinstance(error, ClocheError) or not isinstance(error, Exception):
            raise
        raise _start_failed(row, error, start_s) from error


@asynccontextmanager
async def _bounded(seconds: float, saved: WhenSaved | None) -> AsyncIterator[None]:
    """The time counts from the moment when everything is saved; saving has its own bound."""
    if saved is None or saved.done():
        async with asyncio.timeout(seconds):
            yield
        return
    async with asyncio.timeout(None) as bound:

        def count(_: WhenSaved) -> None:
            with suppress(RuntimeError):  # the body has just ended
                bound.reschedule(asyncio.get_running_loop().time() + seconds)

        saved.add_done_callback(count)
        try:
            yield
        finally:
            saved.remove_done_callback(count)


class _Probe:
    """Called once in every try of the driver. What the guest of an earlier try spent is good again for the next one."""

    def __init__(self, uplink: Uplink) -> None:
        self._uplink = uplink
        self._calls = 0

    async def __call__(self) -> None:
        self._calls += 1
        if self._calls > 1:
            self._uplink.begin_again()
        await probe_guest(self._uplink)


async def probe_guest(uplink: Uplink) -> None:
    """Waits for ever for a hello, then asks one question; the driver bounds it. Raises what `Uplink.wait_greeted` does."""
    await uplink.wait_greeted()
    answer = await call_guest(uplink.pool, HEALTH, max_bytes=65_536)
    try:
        await answer.whole(65_536)
    finally:
        answer.close()


def _spec(life: Life, uplink: Uplink) -> SandboxSpec:
    row = life.row
    return SandboxSpec(
        sandbox_id=row.id,
        epoch=row.epoch,
        rootfs=life.image.rootfs,
        resources=row.resources,
        uplink_directory=uplink.directory,
        image_env=life.image.env,
        guest_env=guest_environment(row.id, row.epoch, life.token, row.env),
        sudo=row.sudo,
        checkpoint=None if life.source is None else life.source.directory,
        volumes=tuple(life.mounts),
    )


def guest_environment(sandbox_id: str, epoch: str, token: str, env: Mapping[str, str]) -> dict[str, str]:
    """What the guest reads at its start and takes out of the environment at once. ``env`` comes with the hello, too."""
    return {
        "CLOCHE_SANDBOX_ID": sandbox_id,
        "CLOCHE_EPOCH": epoch,
        "CLOCHE_UPLINK_TOKEN": token,
        "CLOCHE_ENV": json.dumps(dict(env)),
    }


async def _undo(sandbox_id: str, driver: Driver, hub: UplinkHub, destroy_s: float) -> None:
    hub.remove(sandbox_id)
    try:
        async with asyncio.timeout(destroy_s):
            await driver.destroy(sandbox_id)
    except Exception:
        # The next start of the server removes what no row knows.
        _LOG.exception("a failed start could not be cleaned up", extra={"sandbox_id": sandbox_id})


def _start_failed(row: SandboxRow, error: Exception, start_s: float) -> SandboxStartFailed:
    what = f"no answer within {start_s:g} s" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
    _LOG.warning("sandbox did not start", extra={"sandbox_id": row.id}, exc_info=error)
    return SandboxStartFailed(
        f"the sandbox did not start: {what}",
        hint="try again; `cloche doctor` looks at the machine",
        details={"driver": row.driver, "output": ""},
    )
