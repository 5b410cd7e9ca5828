"""One live process: a tree of programs, its journal, and the one task that supervises it.

Whatever happens (an exit, an end of output, a request) only changes facts and wakes the task; the task asks
`_supervision.decide` and acts. The journal gets ``started``, output as raw bytes, ``exited`` once, perhaps ``lingering``, and
``finished`` or ``lost`` last.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from pydantic import JsonValue

from cloche.errors import Conflict
from cloche.journal import Journal, split_bytes
from cloche.journal_feed import JournalFeed
from cloche.models import ExecCreate, Process, ProcessCreate, ProcessExit, ProcessState, StdinReply, Tty
from cloche_guest.children import Children, ExitStatus
from cloche_guest.clock import Clock
from cloche_guest.contexts._failure import read_oom_kills, signal_name
from cloche_guest.contexts._router import encode
from cloche_guest.identity import new_epoch
from cloche_guest.processes import _supervision
from cloche_guest.processes._launch import Launched, Order
from cloche_guest.processes._pipes import InputPipe, OutputPipe
from cloche_guest.processes._supervision import Decision, Facts, Step, decide
from cloche_guest.processes._tree import Tree

MIB: Final = 1024 * 1024
MAX_BYTES: Final = 8 * MIB
HEAD_BYTES: Final = 1 * MIB
KEPT_BYTES: Final = 64 * 1024
"""`started`, `exited` and the like: some hundred bytes each."""

LOOK_S: Final = 5.0
"""Between two looks whether the root is still there: a status that was lost shows in nothing else."""

Told = Callable[[str, Mapping[str, JsonValue]], None]
Body = ProcessCreate | ExecCreate


@dataclass(frozen=True, slots=True)
class Naming:
    """What a process is called, and what it belongs to."""

    id: str
    name: str | None
    service: str | None
    mark: str


class LiveProcess:
    """See the module. ``tell`` gets the events for the sandbox' journal."""

    def __init__(
        self, naming: Naming, body: Body, order: Order, launched: Launched, children: Children, tell: Told, clock: Clock
    ) -> None:
        self.id = naming.id
        self.body = body
        self.feed = JournalFeed(Journal(new_epoch(), max_bytes=MAX_BYTES, head_bytes=HEAD_BYTES, kept_bytes=KEPT_BYTES))
        self.state = ProcessState.RUNNING
        self.exit: ProcessExit | None = None
        self.settled = asyncio.Event()
        """It has exited and finished, lingers, or is lost: an exec can answer."""
        self.ended = asyncio.Event()
        """It has finished or is lost."""
        self.counts: dict[str, int] = {"stdout": 0, "stderr": 0}
        self._naming = naming
        self._order = order
        self._tty = order.tty
        self._children = children
        self._child = launched.child
        self._tree = Tree(launched.child, naming.mark)
        self._tell = tell
        self._clock = clock
        self.worked_at = clock()
        """When it last started, wrote or exited."""
        self._oom_kills = read_oom_kills()
        self._held = False
        self._created_at = datetime.now(UTC)
        self._exited_at: datetime | None = None
        self._finished_at: datetime | None = None
        self._duration_s: float | None = None
        held_s = _supervision.TTY_HELD_S if order.tty else _supervision.HELD_S
        self._facts = Facts(clock(), timeout_s=body.timeout_s, held_s=held_s)
        self._changed = asyncio.Event()
        self._note("started", {"pid": self._child.pid})
        self._stdin = InputPipe(launched.stdin, end_mark=launched.end_mark) if launched.stdin is not None else None
        self._outputs = [
            OutputPipe(descriptor, _appender(self, kind), self._changed.set) for kind, descriptor in launched.outputs
        ]
        self._child.exited.add_done_callback(lambda _: self._changed.set())
        self._task = asyncio.create_task(self._serve(), name=f"process {self.id}")
        self._feeding = self._start_feeding(body)
        command = order.argv[0] if body.shell is None else body.shell
        tell("process_started", {**self._names(), "pid": self._child.pid, "command": command[:256]})

    # What others ask.

    @property
    def service(self) -> str | None:
        """Which it is the program of."""
        return self._naming.service

    @property
    def tree(self) -> tuple[int, str]:
        """Pid and mark, by which all is found that it has started."""
        return self._child.pid, self._naming.mark

    @property
    def is_over(self) -> bool:
        """It has finished, or is lost."""
        return self.state in (ProcessState.FINISHED, ProcessState.LOST)

    def is_same(self, body: Body) -> bool:
        """A repeated request for this process."""
        return type(body) is type(self.body) and body.model_copy(update={"id": None}) == self.body.model_copy(
            update={"id": None}
        )

    def to_model(self) -> Process:
        """The process as it is now."""
        return Process(
            id=self.id,
            name=self._naming.name,
            service=self._naming.service,
            argv=self._order.argv,
            cwd=self._order.cwd,
            env=sorted(self.body.env),
            user=self.body.user,
            tty=self._tty,
            timeout_s=self.body.timeout_s,
            pid=self._child.pid,
            state=self.state,
            exit=self.exit,
            output_held=self._held,
            stdin_open=self._stdin is not None and self._stdin.is_open,
            stdin_offset=self._stdin.offset if self._stdin is not None else 0,
            stdout_bytes=self.counts["stdout"],
            stderr_bytes=self.counts["stderr"],
            created_at=self._created_at,
            exited_at=self._exited_at,
            finished_at=self._finished_at,
            duration_s=self._duration_s,
            cursor=str(self.feed.journal.head),
        )

    def signal(self, number: int, kill_after_s: float | None) -> None:
        """To every process of the tree. One that has ended stays as it is."""
        if self.is_over:
            return
        if number == signal.SIGKILL:
            self._facts = replace(self._facts, kill_at=self._clock(), killed=True)
            self._tree.kill()
        else:
            self._tree.send(number)
        if kill_after_s is not None:
            self._facts = replace(self._facts, kill_at=self._clock() + kill_after_s)
        self._changed.set()

    def resize(self, tty: Tty) -> None:
        """Give its terminal another size. One that has ended stays as it is.

        Raises:
            Conflict: it has no terminal.
        """
        if self._tty is None:
            raise Conflict(
                f"process {self.id} has no terminal", hint="start it with tty", details={"process_id": self.id}
            )
        if self.is_over:
            return
        self._tty = tty
        self._outputs[0].resize(tty, self._child.pid if self._order.stdin_open else None)
        if not self._order.stdin_open:  # the terminal controls nobody, so the kernel tells nobody
            self._child.signal_group(signal.SIGWINCH)

    async def write(self, data: bytes, *, offset: int | None, close: bool, wait_s: float) -> StdinReply:
        """Give input to the program; waits `wait_s` for it to read. What was not taken by then the client sends again.

        ``offset``: where in the whole input ``data`` begins; what was taken before is not taken again.

        Raises:
            Conflict: there is no open stdin, or `offset` leaves a hole.
        """
        stdin = self._open_stdin(offset, len(data))
        left = memoryview(data)[0 if offset is None else stdin.offset - offset :]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while left and stdin.is_open:
                    left = left[stdin.take(left) :]
                    if left:
                        await stdin.wait_for_room()
        if not left and close and stdin.is_open:
            stdin.end()
        elif left and not stdin.is_open:
            raise self._no_stdin("the program has closed its stdin")
        return StdinReply(offset=stdin.offset, open=stdin.is_open)

    async def kill(self) -> None:
        """End all of it now; returns when it is over."""
        if not self.is_over:
            self.signal(signal.SIGKILL, None)
            await self.ended.wait()

    async def stop(self, grace_s: float) -> None:
        """TERM, grace, KILL; returns when it is over."""
        if not self.is_over:
            self.signal(signal.SIGTERM, grace_s)
            await self.ended.wait()

    def release(self) -> None:
        """Close what a descendant may still hold. After the end only."""
        for output in self._outputs:
            output.close()

    # The task.

    async def _serve(self) -> None:
        while True:
            self._look()
            decision = decide(self._facts, self._clock())
            if decision.step in (Step.FINISH, Step.LOSE):
                self._end(decision)
                return
            await self._act(decision)

    async def _act(self, decision: Decision) -> None:
        now = self._clock()
        match decision.step:
            case Step.TERMINATE:
                self._facts = replace(self._facts, terminated=True, kill_at=now + self.body.grace_s)
                self._tree.send(signal.SIGTERM)
                self._tree.send(signal.SIGCONT)  # a stopped program could not obey
            case Step.KILL:
                self._facts = replace(self._facts, killed=True)
                self._tree.kill()
            case Step.LINGER:
                self._facts = replace(self._facts, lingered=True)
                self.state = ProcessState.LINGERING
                self._note("lingering", {})
                self.settled.set()
            case _:
                await self._wait(decision.until, now)

    def _look(self) -> None:
        """Bring the facts up to date."""
        if self._facts.exited_at is None and self._child.exited.done():
            self._take_exit(self._child.exited.result())
        facts = replace(self._facts, drained=all(output.ended for output in self._outputs))
        if facts.exited_at is None:
            facts = replace(facts, root_gone=self._is_lost())
        elif facts.group_empty_at is None and self._tree.group_is_empty():
            facts = replace(facts, group_empty_at=self._clock())
        self._facts = facts

    def _is_lost(self) -> bool:
        if self._tree.root_is_there():
            return False
        self._children.collect()
        return not self._child.exited.done()

    def _take_exit(self, status: ExitStatus) -> None:
        """What the root wrote before it exited comes before its exit."""
        for output in self._outputs:
            output.drain()
        now = self._clock()
        killed_by_us = self._facts.killed
        no_memory = status.signal == signal.SIGKILL and not killed_by_us and read_oom_kills() > self._oom_kills
        self.exit = ProcessExit(
            code=status.code,
            signal=None if status.signal is None else signal_name(status.signal),
            timed_out=self._facts.terminated,
            out_of_memory=no_memory,
        )
        self._exited_at = datetime.now(UTC)
        self._duration_s = now - self._facts.started_at
        self._facts = replace(self._facts, exited_at=now)
        self.worked_at = now
        if self._stdin is not None:
            self._stdin.close()
        told: dict[str, JsonValue] = {**self.exit.model_dump(mode="json"), "duration_s": self._duration_s}
        self._note("exited", told)
        self._tell("process_exited", {**self._names(), **told})

    def _end(self, decision: Decision) -> None:
        self._finished_at = datetime.now(UTC)
        self._held = decision.held
        for output in self._outputs:
            output.drain()
            output.ignore()
        if self._stdin is not None:
            self._stdin.close()
        if self._feeding is not None:
            self._feeding.cancel()
        if decision.step is Step.LOSE:
            self.state = ProcessState.LOST
            self._children.give_up(self._child)
            self._note("lost", {})
            self._tell("process_lost", self._names())
        else:
            self.state = ProcessState.FINISHED
            self._note("finished", {"output_held": self._held})
        self.feed.close()
        self.settled.set()
        self.ended.set()

    async def _wait(self, until: float | None, now: float) -> None:
        """Until something changed or `until`; while the group is polled, no longer than to the next poll."""
        longest = now + LOOK_S
        if self._facts.exited_at is not None and self._facts.group_empty_at is None:
            longest = now + _supervision.poll_pause_s(now - self._facts.exited_at)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(longest, until or longest) - now)):
                await self._changed.wait()
        self._changed.clear()

    def _start_feeding(self, body: Body) -> asyncio.Task[None] | None:
        if not isinstance(body, ExecCreate) or self._stdin is None:
            return None
        return asyncio.create_task(self._feed(self._stdin, body.input.to_bytes()))

    async def _feed(self, stdin: InputPipe, data: bytes) -> None:
        """The input of an exec, at the program's pace."""
        left = memoryview(data)
        while left and stdin.is_open:
            left = left[stdin.take(left) :]
            if left:
                await stdin.wait_for_room()
        if stdin.is_open:
            stdin.end()

    # Small things.

    def take_output(self, kind: str, data: bytes) -> None:
        self.counts[kind] += len(data)
        self.worked_at = self._clock()
        self.feed.append(kind, data, split=split_bytes)

    def _note(self, kind: str, data: Mapping[str, JsonValue]) -> None:
        self.feed.append(kind, encode(dict(data)), keep=True)

    def _names(self) -> dict[str, JsonValue]:
        return {"process_id": self.id, "name": self._naming.name, "service": self._naming.service}

    def _open_stdin(self, offset: int | None, count: int) -> InputPipe:
        if self._stdin is None:
            raise self._no_stdin("it was started with its stdin at the end")
        if offset is not None and offset > self._stdin.offset:
            raise Conflict(
                f"input up to {offset} is missing: {self._stdin.offset} bytes were taken so far",
                details={"offset": self._stdin.offset},
            )
        if not self._stdin.is_open and not (offset is not None and offset + count <= self._stdin.offset):
            raise self._no_stdin("it was closed")
        return self._stdin

    def _no_stdin(self, why: str) -> Conflict:
        taken = self._stdin.offset if self._stdin is not None else 0
        return Conflict(f"process {self.id} takes no input: {why}", details={"process_id": self.id, "offset": taken})


def _appender(process: LiveProcess, kind: Literal["stdout", "stderr"] | str) -> Callable[[bytes], None]:
    def append(data: bytes) -> None:
        process.take_output(kind, data)

    return append


def mark_of(process_id: str) -> str:
    """Names one process in the environment of all it starts."""
    return f"{process_id}:{secrets.token_hex(4)}"


def own_variables(order_env: Mapping[str, str], *, is_root: bool) -> dict[str, str]:
    """``order_env`` with what belongs to root, where root runs it."""
    if not is_root or os.geteuid() != 0:
        return dict(order_env)
    return {**order_env, "HOME": "/root", "USER": "root", "LOGNAME": "root"}
