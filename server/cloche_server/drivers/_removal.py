"""Removing what is left of a sandbox: its processes with their cgroup, and its directory."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path
from typing import Final

from cloche.errors import InternalError
from cloche_server.drivers._cgroup import Cgroup

REMOVE_BOUND_S: Final = 15.0


async def remove_cgroup(cgroup: Cgroup) -> None:
    """`InternalError` when processes are left in it after `REMOVE_BOUND_S`."""
    try:
        async with asyncio.timeout(REMOVE_BOUND_S):
            while cgroup.exists_anywhere():
                await cgroup.kill_all()
                if not cgroup.remove():
                    await asyncio.sleep(0.005)
    except TimeoutError:
        stuck = sorted(cgroup.pids())
        message = f"{cgroup.oci_path} could not be emptied in {REMOVE_BOUND_S:.0f} s; processes left: {stuck}"
        raise InternalError(message, hint="a process stuck in the kernel; destroy again later") from None


def delete_tree(directory: Path) -> None:
    """Again while something is written into it: a waiter may be recording the exit."""
    while directory.exists():
        try:
            shutil.rmtree(directory)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
