"""How kernels come to be: forked from a zygote where that can be, else started as a program.

When there is a zygote
----------------------
* Not before the second context: a sandbox with one kernel, the usual one, does not pay the memory of another process.
* Or as soon as somebody asks for it (`prepare`): a template does.
* It has imported what kernels import by themselves and, of `DATA_STACK`, what kernels of this sandbox were seen to use.
* One that has ended, or is stale, is replaced; meanwhile kernels are started as programs. That way always works.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cloche_guest.children import Account, Child, Children
from cloche_guest.contexts._leftovers import MARK
from cloche_guest.contexts._log_tail import LogTail
from cloche_guest.contexts._preload import differs_at_import
from cloche_guest.contexts._zygote import CannotFork, Zygote, ZygoteUseless

LAUNCHER: Final = Path(__file__).parent.parent / "kernel_side" / "launch.py"

_PLACEHOLDER: Final = "x" * 80
_ROOM: Final = " " * 100
"""In the environment and the command line of the zygote: room for the mark and the connection file of any kernel."""

KERNEL_ENV: Final = {
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",  # else four lines of debugger warnings are in the first cell's stderr
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel to be. `env` is complete; `options` are those of `app.main`, without descriptors."""

    connection_file: Path
    cwd: str
    env: Mapping[str, str]
    options: Mapping[str, Any]
    context_id: str


Edition = tuple[int, int]
"""Which zygote it is, and how much it has imported: kernels of one edition begin alike."""


@dataclass(frozen=True, slots=True)
class Launched:
    """`cold` says why it was not forked; empty when it was."""

    child: Child
    cold: str


class Launcher:
    """One instance a guest. `environment` is of everything started, asked anew each time."""

    def __init__(
        self, children: Children, environment: Callable[[], dict[str, str]], python: str, account: Account | None
    ) -> None:
        self._children = children
        self._environment = environment
        self._python = python
        self._account = account
        self._zygote: Zygote | None = None
        self._preparing = asyncio.Lock()
        self._modules: list[str] = []
        self._life = os.pipe()

    async def launch(self, launch: Launch, ready: int, log_end: int) -> Launched:
        """Start a kernel; it writes to `ready` when it is, and its own words to `log_end`.

        Raises:
            OSError: the program or the directory cannot be used; `filename` says which.
        """
        try:
            return Launched(await self._fork(launch, ready, log_end), "")
        except CannotFork as error:
            return Launched(self._spawn(launch, ready, log_end), str(error))

    @property
    def edition(self) -> Edition | None:
        """Of the kernels that would be forked now; None when none would."""
        if self._zygote is None or not self._zygote.is_alive or self._preparing.locked():
            return None
        return self._zygote.pid, len(self._zygote.modules)

    async def fork_spare(self, launch: Launch, ready: int, log_end: int) -> Launched:
        """As `launch`: a kernel that waits for an order.

        Raises:
            CannotFork, OSError
        """
        spare = replace(launch, options={**launch.options, "spare": True})
        return Launched(await self._fork(spare, ready, log_end), "")

    async def prepare(self, modules: Sequence[str]) -> None:
        """Have a zygote that has imported these and all that was asked for before. Returns when it has; without one if it
        cannot be."""
        self._modules += [name for name in modules if name not in self._modules]
        async with self._preparing:
            try:
                await self._preload()
            except ZygoteUseless as error:
                log.info("another zygote is needed: %s", error)
                await self._preload_again()
            except (CannotFork, OSError) as error:
                log.warning("no zygote: %s", error)

    async def _preload(self) -> None:
        if self._zygote is None or not self._zygote.is_alive:
            self._zygote = self._start_zygote()
        await self._zygote.preload(self._modules)

    async def _preload_again(self) -> None:
        if self._zygote is not None:
            await self._give_up(self._zygote)
        try:
            await self._preload()
        except (CannotFork, OSError) as error:
            log.warning("no zygote: %s", error)

    async def stop(self) -> None:
        """End the zygote; kernels that are left end with the guest."""
        if self._zygote is not None:
            await self._zygote.end()
        for end in self._life:
            os.close(end)

    async def _fork(self, launch: Launch, ready: int, log_end: int) -> Child:
        zygote = self._zygote
        if zygote is None:
            raise CannotFork("there is no zygote")
        if not zygote.is_alive:
            raise CannotFork("the zygote has ended")
        if self._preparing.locked():
            raise CannotFork("the zygote is being prepared")
        if names := differs_at_import(zygote.env, launch.env):
            raise CannotFork(f"{', '.join(names)} count when a kernel starts")
        order = {
            "connection_file": str(launch.connection_file),
            "cwd": launch.cwd,
            "env": dict(launch.env),
            "options": dict(launch.options),
            "shown": [str(launch.connection_file), launch.context_id],
        }
        try:
            return await zygote.fork(order, [ready, log_end, self._life[0]])
        except ZygoteUseless as error:
            log.info("the zygote is given up: %s", error)
            await self._give_up(zygote)
            raise

    async def _give_up(self, zygote: Zygote) -> None:
        if self._zygote is zygote:
            self._zygote = None
        await zygote.end()

    def _spawn(self, launch: Launch, ready: int, log_end: int) -> Child:
        options = json.dumps({**launch.options, "ready_fd": ready})
        return self._children.spawn(
            [self._python, str(LAUNCHER), str(launch.connection_file), options],
            cwd=launch.cwd,
            env=launch.env,
            account=self._account,
            stdout=log_end,
            stderr=log_end,
            pass_fds=[ready],
        )

    def _start_zygote(self) -> Zygote:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        log_read, log_end = os.pipe()
        env = {**self._environment(), **KERNEL_ENV}
        try:
            child = self._children.spawn(
                [self._python, str(LAUNCHER), "--zygote", str(theirs.fileno()), _ROOM],
                cwd="/",
                env={**env, MARK: _PLACEHOLDER},
                account=self._account,
                stdout=log_end,
                stderr=log_end,
                pass_fds=[theirs.fileno()],
            )
        except OSError:
            ours.close()
            os.close(log_read)
            raise
        finally:
            theirs.close()
            os.close(log_end)
        return Zygote(child, ours, LogTail(log_read), self._children, env)
