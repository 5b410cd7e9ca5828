"""A command that was given up leaves nothing: no process, no pipe."""

from __future__ import annotations

import asyncio
import gc

from cloche_server.child_process import kill_and_drain


async def test_what_a_killed_command_has_started_is_killed_too_and_its_pipe_closed() -> None:
    """The pipe is at its end when all have ended who held it. An unclosed transport would be an error when it is collected."""
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", "sleep 1000 & echo ready; exec sleep 1000"),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    await kill_and_drain(process)
    assert process.returncode == -9
    assert process.stdout.at_eof()
    del process
    gc.collect()


async def test_one_that_has_ended_is_left_alone() -> None:
    process = await asyncio.create_subprocess_exec("true", start_new_session=True)
    await process.wait()
    await kill_and_drain(process)
    assert process.returncode == 0
