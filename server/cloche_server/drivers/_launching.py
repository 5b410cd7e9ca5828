"""The launcher's process: started for one sandbox, or ahead for whichever comes next.

Python takes 20 ms of processor time before the launcher does anything; in a fork that is beside the source, which stands
still to be saved. So from the first start with memory on one launcher waits for its orders: 7 MB, of which most is shared.
It knows nothing until then, belongs to no sandbox, and ends with this process, which holds the other end of its input.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from cloche_server.drivers._console import open_first_words
from cloche_server.drivers._launch_orders import launcher_environment
from cloche_server.drivers._layout import SandboxPaths

_LAUNCHER: Final = Path(__file__).with_name("_launcher.py")

AGAIN_S: Final = 1.0
"""After a start: what was just started has the processors first."""

Process = subprocess.Popen[bytes]


class LauncherAhead:
    """At most one. Bound to no event loop."""

    def __init__(self) -> None:
        self._waiting: Process | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def launch(self, paths: SandboxPaths) -> Process:
        """A launcher that has its orders. `OSError` when none can be started."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None and _has_heard(waiting, paths):
            return waiting
        with open_first_words(paths) as words:
            return _spawn((str(paths.orders),), stdin=subprocess.DEVNULL, stderr=words.fileno())

    def make_soon(self) -> None:
        """Have one in `AGAIN_S`, if the event loop is there then."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(AGAIN_S, self._make)

    def _make(self) -> None:
        if self._waiting is None and not self._closed:
            with suppress(OSError):  # the next start says why
                self._waiting = _spawn((), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def close(self) -> None:
        """End the one that waits; there will be no other."""
        self._closed = True
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            _give_up(waiting)


def _spawn(arguments: Sequence[str], *, stdin: int, stderr: int) -> Process:
    return subprocess.Popen(
        (sys.executable, "-I", "-S", str(_LAUNCHER), *arguments),
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
        env=launcher_environment(),
    )


def _has_heard(launcher: Process, paths: SandboxPaths) -> bool:
    """False: it is dead."""
    assert launcher.stdin is not None
    try:
        launcher.stdin.write(os.fsencode(paths.orders) + b"\n")
        launcher.stdin.close()
    except OSError:
        _give_up(launcher)
        return False
    return True


def _give_up(launcher: Process) -> None:
    launcher.kill()
    launcher.wait()
    if launcher.stdin is not None:
        with suppress(OSError):
            launcher.stdin.close()


async def end_of(launcher: Process) -> int:
    """Its exit code. When this is cancelled it is killed."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    pidfd = os.pidfd_open(launcher.pid)
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    except BaseException:
        launcher.kill()
        await ended.wait()
        raise
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        code = launcher.wait()
    return code
