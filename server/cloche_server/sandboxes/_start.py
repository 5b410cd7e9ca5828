"""Starting one sandbox: the order of the steps, and undoing them all when one fails."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Final

from cloche.errors import ClocheError, SandboxStartFailed
from cloche_server.drivers import Driver, SandboxSpec
from cloche_server.relay import GuestCall, call_guest
from cloche_server.sandboxes._live import Live
from cloche_server.sandboxes._seams import ResolvedImage
from cloche_server.state import SandboxRow
from cloche_server.uplink import Expected, Uplink, UplinkHub

_LOG: Final = logging.getLogger("cloche.sandboxes")

HEALTH: Final = GuestCall("GET", "/v1/health", statuses={200}, bound_s=10)


def expected_of(row: SandboxRow) -> Expected:
    return Expected(sandbox_id=row.id, epoch=row.epoch, token_hash=row.token_hash, env=row.env, sudo=row.sudo)


async def start_sandbox(
    row: SandboxRow,
    token: str,
    driver: Driver,
    image: ResolvedImage,
    hub: UplinkHub,
    *,
    start_s: float,
    destroy_s: float,
) -> Live:
    """Returns when the guest said hello and answered a health question; bounded by ``start_s``.

    On any failure, a cancellation included, nothing is left: no process, mount, directory or socket.
    """
    try:
        uplink = await hub.listen(expected_of(row))
        spec = _spec(row, token, image, uplink)
        async with asyncio.timeout(start_s):
            await driver.start(spec, probe=lambda: probe_guest(uplink))
        return Live(row=row, driver=driver, uplink=uplink)
    except BaseException as error:
        await asyncio.shield(_undo(row.id, driver, hub, destroy_s))
        if isinstance(error, ClocheError) or not isinstance(error, Exception):
            raise
        raise _start_failed(row, error, start_s) from error


async def probe_guest(uplink: Uplink) -> None:
    """Waits for ever for a hello, then asks one question; the driver bounds it. Raises what `Uplink.wait_greeted` does."""
    await uplink.wait_greeted()
    answer = await call_guest(uplink.pool, HEALTH, max_bytes=65_536)
    try:
        await answer.whole(65_536)
    finally:
        answer.close()


def _spec(row: SandboxRow, token: str, image: ResolvedImage, uplink: Uplink) -> SandboxSpec:
    return SandboxSpec(
        sandbox_id=row.id,
        epoch=row.epoch,
        rootfs=image.rootfs,
        resources=row.resources,
        uplink_directory=uplink.directory,
        image_env=image.env,
        guest_env=guest_environment(row.id, row.epoch, token, row.env),
        sudo=row.sudo,
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
