"""Kills for want of memory that the host's kernel makes: where the driver shows the cgroup's counter, it is watched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import JsonValue

from cloche_guest.contexts._failure import read_cgroup_kills

PERIOD_S: Final = 1.0
"""The counter of a bind-mounted cgroup file gives no inotify events; a read costs some 20 microseconds."""


async def watch_memory_kills(tell: Callable[[str, Mapping[str, JsonValue]], None]) -> None:
    """Until cancelled."""
    known = read_cgroup_kills()
    while True:
        await asyncio.sleep(PERIOD_S)
        count = read_cgroup_kills()
        if count > known:
            tell("out_of_memory", {"kills": count - known})
        known = count  # less than before in a sandbox that was restored: its cgroup is a new one
