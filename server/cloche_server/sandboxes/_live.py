"""A sandbox that runs, as this process holds it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cloche_server.drivers import Driver
from cloche_server.state import SandboxRow
from cloche_server.uplink import Uplink


@dataclass(slots=True)
class Live:
    """``row`` is the newest state; ``watch`` ends the sandbox' record when the sandbox ends."""

    row: SandboxRow
    driver: Driver
    uplink: Uplink
    watch: asyncio.Task[None] | None = None
