"""All terminals of the sandbox. A terminal is never ended for being idle or unwatched; that is the sandbox' policy."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from cloche.errors import ClocheError, Gone, InvalidRequest, LimitReached, NotFound
from cloche.models.terminals import CLOSE_NO_TERMINAL, Terminal, TerminalCreate
from cloche_guest.children import Account, Children
from cloche_guest.clock import Clock
from cloche_guest.contexts._leftovers import MARK
from cloche_guest.contexts._runs import new_id
from cloche_guest.identity import new_epoch
from cloche_guest.latest_ids import LatestIds
from cloche_guest.programs import argv_of, first_shell
from cloche_guest.pulse import until_pulse
from cloche_guest.terminals.log import Dimensions
from cloche_guest.terminals.pty import PtyEvents, open_pty
from cloche_guest.terminals.recording import Recording
from cloche_guest.terminals.terminal import LiveTerminal

MAX_RUNNING: Final = 64
"""Each may keep 5 MiB of output; people and agents use a handful."""

MAX_EXITED: Final = 25
MAX_REMEMBERED: Final = 1000
"""Ids of terminals that are no longer kept, so that they are `Gone` and not unknown."""

TICK_S: Final = 0.25


class TerminalService:
    """Finds, makes and deletes terminals. One instance a guest."""

    def __init__(
        self,
        children: Children,
        environment: Callable[[], dict[str, str]],
        *,
        account: Account | None,
        workspace: str,
        runtime_dir: Path,
        clock: Clock,
        tell: Callable[[str, Mapping[str, JsonValue]], None],
    ) -> None:
        self._children = children
        self._environment = environment
        self._account = account
        self._workspace = workspace
        self._runtime_dir = runtime_dir
        self._clock = clock
        self._tell = tell
        self._terminals: OrderedDict[str, LiveTerminal] = OrderedDict()
        self._gone = LatestIds(MAX_REMEMBERED)
        self._ticking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._terminals)

    def all(self) -> list[LiveTerminal]:
        """Newest first."""
        return list(reversed(self._terminals.values()))

    def get(self, terminal_id: str) -> LiveTerminal:
        """
        Raises:
            NotFound, Gone
        """
        terminal = self._terminals.get(terminal_id)
        if terminal is not None:
            return terminal
        details: dict[str, JsonValue] = {"kind": "terminal", "id": terminal_id}
        if terminal_id in self._gone:
            raise Gone(f"terminal {terminal_id} is no longer kept", details=details)
        raise NotFound(f"there is no terminal {terminal_id}", details=details)

    def create(self, body: TerminalCreate) -> LiveTerminal:
        """Start a program on a new terminal. A create that fails leaves nothing behind.

        Raises:
            InvalidRequest: the program or the directory cannot be used.
            LimitReached
        """
        self._make_room()
        argv = argv_of(body, first_shell(self._environment().get("SHELL", "")))
        cwd = body.cwd or self._workspace
        terminal_id = new_id("term-")
        mark = f"{terminal_id}:{secrets.token_hex(4)}"
        size = Dimensions(body.cols, body.rows)
        recording = Recording(str(self._runtime_dir), size, time.time()) if body.record else None
        terminal = LiveTerminal(
            terminal_id,
            body,
            argv=argv,
            cwd=cwd,
            epoch=new_epoch(),
            mark=mark,
            recording=recording,
            tell=self._tell,
            clock=self._clock,
        )
        env = {**self._environment(), **body.env, "TERM": "xterm-256color", "COLORTERM": "truecolor", MARK: mark}

        def events() -> PtyEvents:
            return terminal

        try:
            pty = open_pty(self._children, argv, cwd=cwd, env=env, account=self._account, size=size, events=events)
        except (OSError, ValueError) as error:
            terminal.release()
            raise _refused(error, body, argv, cwd) from error
        terminal.run(pty)
        self._terminals[terminal_id] = terminal
        self._start_ticking()
        return terminal

    async def delete(self, terminal_id: str) -> Terminal:
        """End a terminal with everything it started, and forget it; returns what it was at the end."""
        terminal = self.get(terminal_id)
        self._forget(terminal)
        await terminal.end()
        return terminal.to_model()

    def acknowledge_input(self) -> None:
        """Viewers are told now what was taken of their input. Who believes that something is still to be delivered would
        wake a sandbox that is put to rest."""
        for terminal in self._terminals.values():
            terminal.tick()

    def renew_journals(self) -> None:
        """Offsets given out so far belong to another life: who comes back with one gets the whole screen."""
        for terminal in self._terminals.values():
            terminal.session.epoch = new_epoch()

    async def end_all(self) -> None:
        """End all, and forget them; others can be made."""
        terminals = list(self._terminals.values())
        for terminal in terminals:
            terminal.close_connections(1001, "the sandbox ends")
            self._forget(terminal)
        await asyncio.gather(*(terminal.end() for terminal in terminals))

    async def stop(self) -> None:
        """The end."""
        if self._ticking is not None:
            self._ticking.cancel()
        await self.end_all()

    def _make_room(self) -> None:
        exited = [terminal for terminal in self._terminals.values() if terminal.exited]
        if len(self._terminals) - len(exited) >= MAX_RUNNING:
            raise LimitReached(
                f"this sandbox has {MAX_RUNNING} running terminals already",
                hint="delete one",
                details={"limit": MAX_RUNNING},
            )
        for terminal in exited[: max(0, len(exited) - MAX_EXITED)]:
            self._forget(terminal)
            terminal.release()

    def _forget(self, terminal: LiveTerminal) -> None:
        del self._terminals[terminal.id]
        self._gone.add(terminal.id)
        terminal.close_connections(CLOSE_NO_TERMINAL, "the terminal was deleted")

    def _start_ticking(self) -> None:
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            watched = any(terminal.is_watched for terminal in self._terminals.values())
            await asyncio.sleep(TICK_S if watched else until_pulse(loop.time()))
            for terminal in self._terminals.values():
                terminal.tick()


def _refused(error: OSError | ValueError, body: TerminalCreate, argv: list[str], cwd: str) -> ClocheError:
    """A terminal that could not be made is the caller's mistake, unless there are no devices left."""
    program = "argv" if body.shell is None else "shell"
    if not isinstance(error, OSError):
        field, problem = program, str(error)
    elif error.filename == cwd:
        field, problem = "cwd", f"{cwd}: {error.strerror}"
    elif error.filename is not None:
        field, problem = program, f"{argv[0]}: {error.strerror}"
    else:
        return LimitReached(f"no terminal could be opened: {error.strerror}", hint="end some")
    errors: list[JsonValue] = [{"field": field, "problem": problem}]
    return InvalidRequest(f"the terminal cannot be started: {problem}", details={"errors": errors})
