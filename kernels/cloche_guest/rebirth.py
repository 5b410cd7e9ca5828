"""Another identity for a guest that runs already, and for everything that lives in it.

Two ways lead here. A guest that was restored from a checkpoint is told when it dials (`be_reborn`): other copies of it
may live elsewhere, so every cursor that was given out is foreign from then on. A sandbox of a pool is claimed
(`be_claimed`): it is the only one of its kind, and its journals go on. So do those of a sandbox that was suspended
and woken: its history has one line only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pydantic import JsonValue

from cloche.errors import Conflict
from cloche.models.guest import Identity
from cloche_guest.contexts import ContextService, IdentityChange
from cloche_guest.identity import SandboxIdentity, new_epoch


class HasJournals(Protocol):
    """A part of the guest with journals."""

    def renew_journals(self) -> None: ...


class Rebirth:
    """`identity` is changed; `touch` is called, because time before does not count as idle time of the new life; `tell` is
    heard in the sandbox' journal."""

    def __init__(
        self,
        identity: SandboxIdentity,
        contexts: ContextService,
        parts: Sequence[HasJournals],
        touch: Callable[[], None],
        tell: Callable[[str, Mapping[str, JsonValue]], None],
    ) -> None:
        self._identity = identity
        self._contexts = contexts
        self._parts = parts
        self._touch = touch
        self._tell = tell
        self._claiming = asyncio.Lock()

    async def be_reborn(self, identity: Identity) -> None:
        """Before anything is served under the new identity."""
        if identity.reason != "resume":
            self._identity.guest_epoch = new_epoch()
            for part in self._parts:
                part.renew_journals()
        await self._adopt(identity)

    async def be_claimed(self, identity: Identity) -> None:
        """Once, however often it is said: a server that died before it had written the answer down says it again.

        Raises:
            Conflict: it is of another sandbox.
        """
        if identity.sandbox_id != self._identity.sandbox_id:
            raise Conflict(
                f"this is sandbox {self._identity.sandbox_id}, and {identity.sandbox_id} is another one",
                details={"kind": "sandbox", "id": self._identity.sandbox_id},
            )
        async with self._claiming:
            if identity.epoch != self._identity.epoch:
                await self._adopt(identity)

    async def _adopt(self, identity: Identity) -> None:
        before = self._identity.environment()
        self._identity.become(identity)
        self._touch()
        await self._contexts.adopt(IdentityChange(before, self._identity.environment(), identity))
        self._tell(
            "sandbox_reborn",
            {
                "reason": identity.reason,
                "sandbox_id": identity.sandbox_id,
                "epoch": identity.epoch,
                "guest_epoch": self._identity.guest_epoch,
            },
        )
