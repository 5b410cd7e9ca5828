"""The end of a process, as its watchers hear of it: while it is removed, and when they come too late to their own wait."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time

import pytest

from cloche_server.drivers._exit_watch import ExitWatch
from cloche_server.drivers._sandbox_watch import End, SandboxWatch

UNTIL_TOLD = ("/bin/sh", "-c", "read line; exit 7")


def until_ended(process: subprocess.Popen[bytes]) -> None:
    """It stays a zombie."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


async def test_who_waits_for_the_end_of_what_is_removed_hears_nothing_of_it() -> None:
    """It met a closed descriptor, and what it waited for was never done."""
    with subprocess.Popen(UNTIL_TOLD, stdin=subprocess.PIPE) as process:
        watch = ExitWatch(process.pid)
        assert not watch.has_ended()
        waiting = asyncio.create_task(watch.wait_status())
        await asyncio.sleep(0)
        watch.close()
        assert await waiting is None
        assert watch.has_ended()
        await watch.ended()


async def test_a_status_is_found_also_by_who_stood_still_for_longer_than_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cloche_server.drivers._exit_watch.STATUS_BOUND_S", 0.05)
    with subprocess.Popen(UNTIL_TOLD, stdin=subprocess.PIPE) as process:
        watch = ExitWatch(process.pid)
        waiting = asyncio.create_task(watch.wait_status())
        await asyncio.sleep(0)
        end_it_and_stand_still(process)
        assert await waiting == 7 << 8
        watch.close()


async def test_the_first_process_is_the_end_also_for_who_stood_still_until_it_had_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The helper of a sandbox that ends in order may be seen to end first."""
    monkeypatch.setattr("cloche_server.drivers._sandbox_watch.ORDERLY_BOUND_S", 0.05)
    with subprocess.Popen(UNTIL_TOLD, stdin=subprocess.PIPE) as first, subprocess.Popen("/bin/true") as helper:
        watch = SandboxWatch(ExitWatch(first.pid), ExitWatch(helper.pid), needs_helper=True)
        until_ended(helper)
        ending = asyncio.create_task(watch.end())
        await asyncio.sleep(0)
        end_it_and_stand_still(first)
        assert await ending == End(7 << 8)
        watch.close()


async def test_a_helper_that_ends_alone_is_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche_server.drivers._sandbox_watch.ORDERLY_BOUND_S", 0.05)
    with subprocess.Popen(UNTIL_TOLD, stdin=subprocess.PIPE) as first, subprocess.Popen("/bin/true") as helper:
        watch = SandboxWatch(ExitWatch(first.pid), ExitWatch(helper.pid), needs_helper=True)
        until_ended(helper)
        assert await watch.end() == End(0, of_helper=True)
        watch.close()


def end_it_and_stand_still(process: subprocess.Popen[bytes]) -> None:
    """This process, for longer than the bounds that these tests set."""
    assert process.stdin is not None
    process.stdin.close()
    until_ended(process)
    time.sleep(0.1)
