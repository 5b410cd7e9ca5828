"""The end of a command that was given up. It was started as the leader of a session (``start_new_session``)."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress
from typing import Final

DRAIN_S: Final = 1.0
"""For the ends of its pipes, which something that it has started and that left its group may hold."""


async def kill_and_drain(process: Process) -> None:
    """Kill it if it runs, with what it has started, and read its pipes to their ends. They would stay open until they are
    collected otherwise, and a loop that ends before warns of "unclosed transports", at any later time."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            await process.communicate()
    await process.wait()
