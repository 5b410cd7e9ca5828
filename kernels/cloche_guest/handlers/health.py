"""``GET /v1/health``."""

from __future__ import annotations

import os
from pathlib import Path

from cloche.models.guest import GuestHealth
from cloche_guest.contexts import ContextService
from cloche_guest.http import Handler, NoQuery


class HealthHandler(Handler):
    """How the guest itself is."""

    def initialize(self, contexts: ContextService, guest_epoch: str) -> None:
        self._contexts = contexts
        self._guest_epoch = guest_epoch

    def get(self) -> None:
        self.read_query(NoQuery)
        self.answer(
            GuestHealth(
                status="ok",
                guest_epoch=self._guest_epoch,
                contexts=len(self._contexts),
                memory_bytes=_resident_bytes(),
                open_files=len(os.listdir("/proc/self/fd")),
            )
        )


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
