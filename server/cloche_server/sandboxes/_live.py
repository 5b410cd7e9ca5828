"""A sandbox that has processes, as this process of the server holds it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from cloche_server.drivers import Driver
from cloche_server.state import SandboxRow
from cloche_server.uplink import Uplink


@dataclass(slots=True)
class Live:
    """Running or paused. ``row`` is the newest state; ``watch`` ends the sandbox' record when the sandbox ends.

    ``active_us`` is the last call into it or work seen in it; it reaches the row when something else is written.
    """

    row: SandboxRow
    driver: Driver
    uplink: Uplink
    watch: asyncio.Task[None] | None = None
    active_us: int = field(default=0)
