"""Processes: programs that were started in a sandbox, wherever they are now.

A handle holds only ids, so it is cheap, and a new one for the same process (`Processes.get`) is as good as the old one.
Dropping a handle, or the whole client, ends nothing. `Process` blocks, `AsyncProcess` awaits.
"""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cloche import _process_calls as _calls
from cloche import models
from cloche._answers import built
from cloche._flow import Flow, Pause, awaiting, blocking, may_repeat, send, send_patiently
from cloche._link import AsyncLink, Link
from cloche._patience import Patience
from cloche._run_handle import WAIT_S
from cloche._tail import Tail
from cloche.errors import ConnectionFailed, SandboxUnreachable, WaitTimeout
from cloche.models import (
    Condition,
    ConditionResult,
    Event,
    ExitCondition,
    LogCondition,
    LogMatch,
    PortCondition,
    ProcessExit,
    ProcessSignal,
    ProcessWait,
)
from cloche.models.terminals import TerminalSize

PART_BYTES: Final = 256 * 1024
"""Input of one call: small enough for the server's bounds, and for a program that reads slowly."""

STDIN_WAIT_S: Final = 10.0
"""For a program to read, in one call."""

DEFAULT_WAIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Output:
    """What a process has put out. ``missed_bytes``: what the journal no longer keeps, between head and tail."""

    stdout_bytes: bytes
    stderr_bytes: bytes
    missed_bytes: int

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")


def output_bytes(event: Event) -> bytes:
    """The bytes of a stdout or stderr event of a process; none for any other event."""
    text, coded = event.data.get("text"), event.data.get("base64")
    if isinstance(coded, str):
        return base64.b64decode(coded)
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b""


class ProcessFlows:
    """What can be done with a process, as flows."""

    def __init__(self, sandbox_id: str, info: models.Process, patience: Patience) -> None:
        self.id = info.id
        self._info = info
        self._path = _calls.process_path(sandbox_id, info.id)
        self._patience = patience
        self._taken: int | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._info.state}>"

    @property
    def info(self) -> models.Process:
        """What the server last said of this process. See ``refresh``."""
        return self._info

    def _keep(self, info: models.Process) -> models.Process:
        self._info = info
        return info

    def _tail(self, cursor: str | None, stream: str | None) -> Tail:
        params = (("stream", stream),) if stream is not None else ()
        path = f"{self._path}/events"
        return _ProcessTail(path, cursor=cursor, last_type=None, patience=self._patience, params=params)

    def _refresh(self) -> Flow[models.Process]:
        """Ask the server for `info` anew."""
        return self._keep((yield from send_patiently(_calls.process(self._path), self._patience)))

    def _signal(self, signal: str | int, *, kill_after_s: float | None = None) -> Flow[models.Process]:
        """Signal every process of the tree, also those that left the group.

        :param signal: ``"TERM"``, ``"SIGTERM"`` or 15.
        :param kill_after_s: then KILL for what is left.
        """
        body = built(ProcessSignal, signal=signal, kill_after_s=kill_after_s)
        return self._keep((yield from send(_calls.signal_process(self._path, body))))

    def _kill(self, *, grace_s: float | None = None) -> Flow[models.Process]:
        """End the whole tree: at once, or with ``grace_s`` by TERM first and KILL after so many seconds."""
        signal = "KILL" if grace_s is None else "TERM"
        body = built(ProcessSignal, signal=signal, kill_after_s=grace_s)
        call = _calls.signal_process(self._path, body)
        return self._keep((yield from send_patiently(call, self._patience)))

    def _delete(self) -> Flow[models.Process]:
        """Kill it with all it has started, and forget it."""
        return self._keep((yield from send(_calls.delete_process(self._path))))

    def _resize(self, cols: int, rows: int) -> Flow[models.Process]:
        """Give its terminal this size; the program is told. One that has ended stays as it is.

        :raises Conflict: it was started without ``tty``.
        """
        call = _calls.resize_process(self._path, built(TerminalSize, cols=cols, rows=rows))
        return self._keep((yield from send_patiently(call, self._patience)))

    def _write(self, data: str | bytes, *, close: bool = False, timeout_s: float = DEFAULT_WAIT_S) -> Flow[None]:
        """Give input to the program, all of it, also over lost connections. One client may write at a time.

        :param close: the end of the input follows.
        :param timeout_s: give up when the program has not read any of it for so long.
        :raises Conflict: it takes no input.
        :raises WaitTimeout: it does not read; ``details.written`` of the bytes were taken.
        """
        raw = data.encode() if isinstance(data, str) else data
        done, idle_s = 0, 0.0
        while True:
            part = raw[done : done + PART_BYTES]
            last = done + len(part) == len(raw)
            wait_s = min(STDIN_WAIT_S, timeout_s)
            taken = yield from self._write_part(part, close=close and last, wait_s=wait_s)
            done += taken
            if done == len(raw):
                return
            idle_s = 0.0 if taken else idle_s + wait_s
            if idle_s >= timeout_s:
                raise WaitTimeout(
                    f"{self.id} has not read its input for {idle_s:g} s",
                    hint="it goes on; write the rest later",
                    details={"bound_s": timeout_s, "written": done},
                )

    def _write_part(self, part: bytes, *, close: bool, wait_s: float) -> Flow[int]:
        """How much of ``part`` was taken. Only a repeated try says where the part begins: it is what may come twice."""
        if self._taken is None:
            self._taken = (yield from self._refresh()).stdin_offset
        began, offset = self._taken, None
        delays = self._patience.delays()
        while True:
            call = _calls.write_stdin(self._path, part, offset=offset, close=close, wait_s=wait_s)
            try:
                self._taken = (yield from send(call)).offset
            except (ConnectionFailed, WaitTimeout, SandboxUnreachable) as error:
                repeated = _calls.write_stdin(self._path, part, offset=began, close=close, wait_s=wait_s)
                delay = next(delays, None) if may_repeat(repeated, error) else None
                if delay is None:
                    raise
                yield Pause(delay)
                offset = began
            else:
                return min(len(part), self._taken - began)

    def _close_stdin(self) -> Flow[None]:
        """The end of the input.

        :raises Conflict: it takes no input.
        """
        yield from send_patiently(_calls.write_stdin(self._path, b"", offset=None, close=True), self._patience)

    def _output(self) -> Flow[Output]:
        """What it has put out so far, as far as the journal keeps it."""
        pieces: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        missed, query = 0, (("limit_bytes", str(4 * 1024 * 1024)),)
        cursor: str | None = None
        while True:
            asked = (*query, ("cursor", cursor)) if cursor is not None else query
            page = yield from send_patiently(_calls.process_output(self._path, asked, 0), self._patience)
            for event in page.events:
                if event.type in pieces:
                    pieces[event.type].append(output_bytes(event))
                elif event.type == "gap":
                    missed += _count(event, "bytes")
            if not page.events:
                return Output(b"".join(pieces["stdout"]), b"".join(pieces["stderr"]), missed)
            cursor = page.cursor

    def _wait_for(
        self, *conditions: Condition, mode: str = "all", timeout_s: float = DEFAULT_WAIT_S
    ) -> Flow[list[ConditionResult]]:
        """Wait until all (or any) of ``conditions`` are met; see `cloche.models` for them.

        :raises ProcessEnded: it ended, and they cannot be met any more.
        :raises WaitTimeout: they are not met after ``timeout_s``. Nothing was stopped.
        """
        return (yield from self._wait(conditions, mode, timeout_s))

    def _wait(self, conditions: Sequence[Condition], mode: str, timeout_s: float | None) -> Flow[list[ConditionResult]]:
        """What was met once counts as met, however often the server has to be asked."""
        results = [ConditionResult(met=False) for _ in conditions]
        left = timeout_s
        while True:
            wait_s = WAIT_S if left is None else min(WAIT_S, max(0.0, left))
            numbers = [number for number, result in enumerate(results) if not result.met]
            asked = [conditions[number] for number in numbers]
            body = built(ProcessWait, conditions=asked, mode=mode, timeout_s=wait_s)
            answer = yield from send_patiently(_calls.wait_for_process(self._path, body), self._patience)
            self._keep(answer.process)
            for number, result in zip(numbers, answer.results, strict=True):
                results[number] = result
            if answer.met:
                return results
            left = None if left is None else left - wait_s
            if left is not None and left <= 0:
                raise self._not_met(conditions, results, timeout_s)

    def _not_met(
        self, conditions: Sequence[Condition], results: Sequence[ConditionResult], timeout_s: float | None
    ) -> WaitTimeout:
        unmet = [(condition, result) for condition, result in zip(conditions, results, strict=True) if not result.met]
        words = ", ".join(f"{c.type} ({r.last})" if r.last else c.type for c, r in unmet)
        return WaitTimeout(
            f"{self.id} is still {self._info.state} after {timeout_s:g} s, not met: {words}",
            hint="the process goes on: wait again, or kill it",
            details={"bound_s": timeout_s, "process_id": self.id, "state": self._info.state},
        )

    def _wait_for_exit(self, timeout_s: float | None = None) -> Flow[ProcessExit]:
        """Wait until it has finished: the program, its output and its group.

        :param timeout_s: give up after so many seconds; None: wait as long as it takes.
        :raises WaitTimeout: it has not finished. It goes on.
        :raises ProcessEnded: it was lost, nobody saw how it ended.
        """
        yield from self._wait([ExitCondition()], "all", timeout_s)
        assert self._info.exit is not None
        return self._info.exit

    def _wait_for_port(
        self,
        port: int,
        *,
        protocol: str = "tcp",
        path: str | None = None,
        status: tuple[int, int] | None = None,
        headers: Mapping[str, str] | None = None,
        interval_s: float | None = None,
        check_timeout_s: float | None = None,
        timeout_s: float = DEFAULT_WAIT_S,
    ) -> Flow[None]:
        """Wait until a port of the sandbox takes connections, or (``protocol="http"``) answers with a good status.

        :param status: lowest and highest good status; the default is 200 to 399.
        :raises ProcessEnded: the process ended first.
        :raises WaitTimeout: not ready after ``timeout_s``.
        """
        condition = built(
            PortCondition,
            port=port,
            protocol=protocol,
            path=path,
            status_from=status[0] if status is not None else None,
            status_to=status[1] if status is not None else None,
            headers=headers,
            interval_s=interval_s,
            check_timeout_s=check_timeout_s,
        )
        yield from self._wait([condition], "all", timeout_s)

    def _wait_for_log(
        self,
        pattern: str | re.Pattern[str],
        *,
        stream: str = "both",
        from_now: bool = False,
        timeout_s: float = DEFAULT_WAIT_S,
    ) -> Flow[LogMatch]:
        """Wait until the output has a text, or matches a regular expression.

        :param pattern: a text, or a compiled expression; its flags go along as far as ``(?...)`` can say them.
        :param stream: ``stdout``, ``stderr`` or ``both``.
        :param from_now: look only at what comes after this call; else from the oldest output kept.
        :raises ProcessEnded: the process ended first.
        :raises WaitTimeout: not found after ``timeout_s``.
        """
        cursor = (yield from self._refresh()).cursor if from_now else None
        text, regex = (pattern, False) if isinstance(pattern, str) else (_with_flags(pattern), True)
        condition = built(LogCondition, pattern=text, regex=regex, stream=stream, cursor=cursor)
        results = yield from self._wait([condition], "all", timeout_s)
        match = results[0].match
        assert match is not None
        return match


class _ProcessTail(Tail):
    """Ends with the process, whichever way that ends."""

    def take(self, frame: object) -> Event | None:
        event = super().take(frame)  # type: ignore[arg-type]
        if event is not None:
            self.done = event.type in ("finished", "lost")
        return event


class Process(ProcessFlows):
    """A program in a sandbox. Made by `Sandbox.processes`."""

    def __init__(self, link: Link, sandbox_id: str, info: models.Process) -> None:
        super().__init__(sandbox_id, info, link.patience)
        self._link = link

    def events(self, cursor: str | None = None, *, stream: str | None = None) -> Generator[Event, None, None]:
        """Output and what happens, from the oldest event kept (or behind ``cursor``) to ``finished`` or ``lost``.

        Reconnects by itself and neither repeats nor leaves out an event; what the journal no longer keeps comes as one
        ``gap``. `cloche.output_bytes` gives the bytes of an event. ``stream`` leaves out the output of the other one.
        """
        return self._link.follow(self._tail(cursor, stream))

    refresh = blocking(ProcessFlows._refresh)
    signal = blocking(ProcessFlows._signal)
    resize = blocking(ProcessFlows._resize)
    kill = blocking(ProcessFlows._kill)
    delete = blocking(ProcessFlows._delete)
    write = blocking(ProcessFlows._write)
    close_stdin = blocking(ProcessFlows._close_stdin)
    output = blocking(ProcessFlows._output)
    wait_for = blocking(ProcessFlows._wait_for)
    wait_for_exit = blocking(ProcessFlows._wait_for_exit)
    wait_for_port = blocking(ProcessFlows._wait_for_port)
    wait_for_log = blocking(ProcessFlows._wait_for_log)


class AsyncProcess(ProcessFlows):
    """A program in a sandbox. Made by `AsyncSandbox.processes`."""

    def __init__(self, link: AsyncLink, sandbox_id: str, info: models.Process) -> None:
        super().__init__(sandbox_id, info, link.patience)
        self._link = link

    def events(self, cursor: str | None = None, *, stream: str | None = None) -> AsyncGenerator[Event, None]:
        """Output and what happens; see `Process.events`."""
        return self._link.follow(self._tail(cursor, stream))

    refresh = awaiting(ProcessFlows._refresh)
    signal = awaiting(ProcessFlows._signal)
    resize = awaiting(ProcessFlows._resize)
    kill = awaiting(ProcessFlows._kill)
    delete = awaiting(ProcessFlows._delete)
    write = awaiting(ProcessFlows._write)
    close_stdin = awaiting(ProcessFlows._close_stdin)
    output = awaiting(ProcessFlows._output)
    wait_for = awaiting(ProcessFlows._wait_for)
    wait_for_exit = awaiting(ProcessFlows._wait_for_exit)
    wait_for_port = awaiting(ProcessFlows._wait_for_port)
    wait_for_log = awaiting(ProcessFlows._wait_for_log)


def _with_flags(pattern: re.Pattern[str]) -> str:
    letters = {re.IGNORECASE: "i", re.DOTALL: "s", re.VERBOSE: "x", re.ASCII: "a"}
    flags = "".join(letter for flag, letter in letters.items() if pattern.flags & flag)
    return f"(?{flags}){pattern.pattern}" if flags else pattern.pattern


def _count(event: Event, name: str) -> int:
    value = event.data.get(name)
    return value if isinstance(value, int) else 0
