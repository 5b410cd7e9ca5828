"""What a server that died while it saved leaves behind: a sandbox whose memory limit is still `WORK_BYTES` too high.

The runtime ends the save by itself, and needs the memory until then; while it writes, it has the files open.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress

from cloche_server.drivers._cgroup import Cgroup
from cloche_server.drivers._layout import SandboxPaths
from cloche_server.drivers._start import KERNEL_STATE


def settle(paths: SandboxPaths, cgroup: Cgroup, pid: int) -> bool:
    """True when nothing is left to do: the limit is the normal one, or as near to it as may be. Only while nobody saves."""
    try:
        normal_bytes = int(json.loads(paths.orders.read_text())["memory_bytes"])
    except (OSError, ValueError, KeyError):  # it is being removed
        return True
    if not cgroup.has_extra_memory(normal_bytes):
        return True
    if writes_a_checkpoint(pid):
        return False
    cgroup.settle_memory(normal_bytes)
    return True


def writes_a_checkpoint(pid: int) -> bool:
    """This process of a runtime. Also one that has ended does not."""
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}").endswith(f"/{KERNEL_STATE}"):
                    return True
    return False
