"""``GET /v1/health``."""

from __future__ import annotations

import os
from pathlib import Path

from cloche.models.guest import GuestHealth
from cloche_guest.contexts import ContextService
from cloche_guest.http import Handler, NoQuery
from cloche_guest.identity import SandboxIdentity


class HealthHandler(Handler):
    """How the guest itself is."""

    def initialize(self, contexts: ContextService, identity: SandboxIdentity) -> None:
        self._contexts = contexts
        self._identity = identity

    def get(self) -> None:
        self.read_query(NoQuery)
        self.answer(
            GuestHealth(
                status="ok",
                guest_epoch=self._identity.guest_epoch,
                contexts=len(self._contexts),
                memory_bytes=_resident_bytes(),
                open_files=len(os.listdir("/proc/self/fd")),
            )
        )


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
