"""Kills for want of memory that the host's kernel makes: where the driver shows the cgroup's counter, it is watched."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pydantic import JsonValue

from cloche_guest.contexts._failure import read_cgroup_kills
from cloche_guest.pulse import until_pulse


async def watch_memory_kills(tell: Callable[[str, Mapping[str, JsonValue]], None]) -> None:
    """Until cancelled. The counter of a bind-mounted cgroup file gives no inotify events; a read costs some 20
    microseconds."""
    loop = asyncio.get_running_loop()
    known = read_cgroup_kills()
    while True:
        await asyncio.sleep(until_pulse(loop.time()))
        count = read_cgroup_kills()
        if count > known:
            tell("out_of_memory", {"kills": count - known})
        known = count  # less than before in a sandbox that was restored: its cgroup is a new one
