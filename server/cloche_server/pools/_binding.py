"""Giving a ready sandbox to somebody: its guest is told another epoch and environment, without a restart.

The environment reaches what runs already: live kernels see it in ``os.environ`` before the guest answers.
"""

from __future__ import annotations

import secrets
from typing import Final

from cloche.errors import SandboxUnreachable
from cloche.models.guest import Identity
from cloche_server.clock import Clock, to_datetime
from cloche_server.relay import GuestCall, call_guest
from cloche_server.sandboxes._live import Live

IDENTITY_BOUND_S: Final = 5.0
"""For one that is slow. Measured: 2 ms on a quiet machine with two cores, 5 ms on gVisor."""

HEALTH_BOUND_S: Final = 2.0


async def bind(live: Live, epoch: str, env: dict[str, str], clock: Clock) -> None:
    """The guest becomes ``epoch`` with ``env``; settled when it has said so. Raises what `call_guest` does, and then
    nobody knows which it is."""
    live.uplink.expect_next(epoch, env)
    await _tell(live, _identity(live, epoch, env, clock))
    live.uplink.settle_on(epoch)


async def unbind(live: Live, clock: Clock) -> None:
    """Back to what its row says: the create it was meant for was served by another one."""
    await bind(live, live.row.epoch, live.row.env, clock)


async def check_health(live: Live) -> None:
    """Raises what `call_guest` does."""
    await _ask(live, GuestCall("GET", "/v1/health", {200}, HEALTH_BOUND_S))


async def settle_down(live: Live) -> None:
    """Nothing is under way between it and the server: then it can be frozen for long. Raises what `call_guest` does.

    The second answer shows that the guest has seen what the server said before.
    """
    await check_health(live)
    await live.uplink.quiet()
    await check_health(live)


async def _tell(live: Live, identity: Identity) -> None:
    """Twice, when a connection that was idle turns out to be closed: to say it again changes nothing."""
    call = GuestCall("POST", "/v1/identity", {204}, IDENTITY_BOUND_S, identity.model_dump_json().encode())
    try:
        await _ask(live, call)
    except SandboxUnreachable as error:
        if not error.details.get("cut"):
            raise
        await _ask(live, call)


async def _ask(live: Live, call: GuestCall) -> None:
    answer = await call_guest(live.uplink.pool, call, 65_536)
    try:
        await answer.whole(65_536)
    finally:
        answer.close()


def _identity(live: Live, epoch: str, env: dict[str, str], clock: Clock) -> Identity:
    return Identity(
        sandbox_id=live.row.id,
        epoch=epoch,
        env=env,
        sudo=live.row.sudo,
        now=to_datetime(clock()),
        seed=secrets.token_hex(32),
        reason="claim",
    )
