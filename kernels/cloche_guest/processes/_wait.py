"""Waiting for a process: every condition is looked after by a task, all of which end with the wait. It changes nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from pydantic import JsonValue

from cloche.errors import InvalidRequest, ProcessEnded
from cloche.journal import Cursor, Gap, Record
from cloche.models import (
    Condition,
    ConditionResult,
    ExitCondition,
    LogCondition,
    LogMatch,
    PortCondition,
    ProcessState,
    ProcessWait,
    WaitResult,
)
from cloche_guest.processes._conditions import Outcome, Verdict, judge
from cloche_guest.processes._matcher import LogMatcher, Match, TooSlow
from cloche_guest.processes._port_check import check_port
from cloche_guest.processes._process import LiveProcess

SHORTEST_S: Final = 0.05
"""Even a wait of no time has a look."""

SETTLE_S: Final = 0.1
"""A match at the very end of the output is taken when nothing more came for so long."""

LAST_WORDS_BYTES: Final = 2000


async def wait_for(process: LiveProcess, body: ProcessWait) -> WaitResult:
    """
    Raises:
        ProcessEnded: it ended, and the conditions can no longer be met.
        InvalidRequest: a pattern is none, or takes too long.
        CursorError: a cursor cannot be used.
    """
    watches = [_watch_of(process, condition) for condition in body.conditions]
    tasks = [asyncio.create_task(watch.run(), name=f"wait for {process.id}") for watch in watches]
    try:
        async with asyncio.timeout(max(body.timeout_s, SHORTEST_S)):
            verdict = await _verdict(body, tasks)
    except TimeoutError:
        verdict = judge(body.mode, [_outcome(task) for task in tasks])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if verdict is Verdict.IMPOSSIBLE:
        raise _ended(process, body, watches, tasks)
    results = [
        ConditionResult(met=_outcome(task) is Outcome.MET, match=watch.match, last=watch.last)
        for task, watch in zip(tasks, watches, strict=True)
    ]
    return WaitResult(met=verdict is Verdict.MET, results=results, process=process.to_model())


async def _verdict(body: ProcessWait, tasks: Sequence[asyncio.Task[bool]]) -> Verdict:
    while True:
        open_tasks = [task for task in tasks if not task.done()]
        verdict = judge(body.mode, [_outcome(task) for task in tasks])
        if verdict is not Verdict.OPEN or not open_tasks:
            return verdict
        await asyncio.wait(open_tasks, return_when=asyncio.FIRST_COMPLETED)


def _outcome(task: asyncio.Task[bool]) -> Outcome:
    """Raises what the task raised."""
    if not task.done() or task.cancelled():
        return Outcome.OPEN
    return Outcome.MET if task.result() else Outcome.FAILED


class _Watch:
    """One condition. `run` answers whether it was met, or that it cannot be met any more."""

    match: LogMatch | None = None
    last: str | None = None

    def __init__(self, process: LiveProcess) -> None:
        self.process = process

    async def run(self) -> bool:
        raise NotImplementedError


class _ExitWatch(_Watch):
    async def run(self) -> bool:
        await self.process.ended.wait()
        return self.process.state is ProcessState.FINISHED


class _PortWatch(_Watch):
    def __init__(self, process: LiveProcess, condition: PortCondition) -> None:
        super().__init__(process)
        self._condition = condition

    async def run(self) -> bool:
        """The last check begins after the end: what a daemon does just before its starter exits counts."""
        while True:
            was_over = self.process.is_over
            self.last = await check_port(self._condition)
            if self.last is None or was_over:
                return self.last is None
            try:
                async with asyncio.timeout(self._condition.interval_s):
                    await self.process.ended.wait()
            except TimeoutError:
                continue


class _LogWatch(_Watch):
    def __init__(self, process: LiveProcess, condition: LogCondition) -> None:
        super().__init__(process)
        streams = frozenset(("stdout", "stderr") if condition.stream == "both" else (condition.stream,))
        self._cursor = process.feed.journal.parse(condition.cursor)
        try:
            self._matcher = LogMatcher(condition.pattern, regex=condition.regex, streams=streams)
        except (re.error, OverflowError, RecursionError) as error:
            raise _bad_pattern(f"not a regular expression: {error}") from error
        except TooSlow:
            raise _bad_pattern("it takes too long") from None

    async def run(self) -> bool:
        feed = self.process.feed
        tentative: tuple[Match, Cursor] | None = None
        while True:
            came = await feed.wait_beyond(self._cursor, SETTLE_S if tentative else None)
            items = feed.journal.read(self._cursor) if came else []
            if not items:
                return self._take(tentative)
            self._cursor = items[-1].cursor
            try:
                found = self._search(items)
            except TooSlow:
                raise _bad_pattern("it takes too long") from None
            if found is not None and found[0].complete:
                return self._take(found)
            tentative = found or tentative
            await asyncio.sleep(0)  # a long journal is not searched in one go

    def _search(self, items: Sequence[Record | Gap]) -> tuple[Match, Cursor] | None:
        """Neighbours of one stream are searched together; when something is found, one by one for the place of it."""
        tentative: tuple[Match, Cursor] | None = None
        for kind, group in groupby(items, _kind):
            records = list(group)
            if kind is None:
                self._matcher.miss()
                continue
            before = self._matcher.place()
            if self._matcher.feed(kind, _joined(records)) is None:
                continue
            self._matcher.go_back(before)
            for record in records:
                assert isinstance(record, Record)
                match = self._matcher.feed(kind, record.data)
                tentative = (match, record.cursor) if match is not None else tentative
                if match is not None and match.complete:
                    return match, record.cursor
        return tentative

    def _take(self, found: tuple[Match, Cursor] | None) -> bool:
        if found is None:
            return False
        match, cursor = found
        self.match = LogMatch(
            stream=match.stream, text=match.text, line=match.line, groups=match.groups, cursor=str(cursor)
        )
        return True


def _kind(item: Record | Gap) -> str | None:
    return item.kind if isinstance(item, Record) else None


def _joined(records: Sequence[Record | Gap]) -> bytes:
    return b"".join(record.data for record in records if isinstance(record, Record))


def _watch_of(process: LiveProcess, condition: Condition) -> _Watch:
    match condition:
        case ExitCondition():
            return _ExitWatch(process)
        case PortCondition():
            return _PortWatch(process, condition)
        case LogCondition():
            return _LogWatch(process, condition)


def _bad_pattern(problem: str) -> InvalidRequest:
    errors: list[JsonValue] = [{"field": "conditions.pattern", "problem": problem}]
    return InvalidRequest(f"the pattern cannot be used: {problem}", details={"errors": errors})


def _ended(
    process: LiveProcess, body: ProcessWait, watches: Sequence[_Watch], tasks: Sequence[asyncio.Task[bool]]
) -> ProcessEnded:
    unmet = [number for number, task in enumerate(tasks) if _outcome(task) is not Outcome.MET]
    wanted = ", ".join(_words(body.conditions[number], watches[number]) for number in unmet)
    exit_status = process.exit
    if exit_status is None:
        how = "was lost"
    elif exit_status.signal is not None:
        how = f"was ended by {exit_status.signal}"
    else:
        how = f"exited with code {exit_status.code}"
    return ProcessEnded(
        f"process {process.id} {how} before {wanted}",
        hint="its output says more",
        details={
            "process_id": process.id,
            "state": process.state.value,
            "exit": exit_status.model_dump(mode="json") if exit_status is not None else None,
            "unmet": list(unmet),
            "stderr": last_words(process),
        },
    )


def last_words(process: LiveProcess) -> str:
    """The end of what it wrote to stderr."""
    journal = process.feed.journal
    records = journal.read(journal.start, max_records=1_000_000, max_bytes=1 << 30)
    parts: list[bytes] = []
    size = 0
    for record in reversed(records):
        if isinstance(record, Record) and record.kind == "stderr":
            parts.append(record.data)
            size += len(record.data)
        if size >= LAST_WORDS_BYTES:
            break
    return b"".join(reversed(parts))[-LAST_WORDS_BYTES:].decode("utf-8", "replace")


def _words(condition: Condition, watch: _Watch) -> str:
    match condition:
        case ExitCondition():
            return "its end was seen"
        case PortCondition():
            return (
                f"port {condition.port} was ready ({watch.last})" if watch.last else f"port {condition.port} was ready"
            )
        case LogCondition():
            return f"its output had {condition.pattern!r}"
