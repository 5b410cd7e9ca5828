"""Run handles: a run that was started, wherever it is now.

A handle holds only ids, so it is cheap, and a new one for the same run (`Context.get_run`) is as good as the old one.
Dropping a handle, or the whole client, does not stop the run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Final

from cloche import _calls
from cloche._answers import built
from cloche._flow import Flow, Follow, Tell, ask, awaiting, blocking, send, send_patiently
from cloche._link import AsyncLink, Link
from cloche._patience import Patience
from cloche._result import RunResult
from cloche._tail import Tail
from cloche._watchers import Watchers, prompt_of, text_of
from cloche.errors import Conflict, WaitTimeout
from cloche.models import Event, InputReply, Run, RunState

WAIT_S: Final = 50.0
"""One bounded wait over HTTP; under the 60 s of the protocol, after which common proxies cut a silent connection."""


class RunFlows:
    """What can be done with a run, as flows."""

    def __init__(self, path: str, run_id: str, patience: Patience) -> None:
        self.id = run_id
        self._path = path
        self._patience = patience

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def _tail(self, cursor: str | None) -> Tail:
        return Tail(f"{self._path}/events", cursor=cursor, last_type="finished", patience=self._patience)

    def _wait(self, timeout_s: float | None = None) -> Flow[RunResult]:
        """Wait until the run has finished.

        :param timeout_s: give up after so many seconds; None: wait as long as it takes (every run is bounded by its own
            ``timeout_s`` and those of the runs queued before it).
        :raises WaitTimeout: it has not finished. The run goes on.
        """
        left = timeout_s
        while True:
            wait_s = WAIT_S if left is None else min(WAIT_S, max(0.0, left))
            run = yield from send_patiently(_calls.run(self._path, wait_s), self._patience)
            if run.state is RunState.FINISHED:
                return RunResult(run)
            left = None if left is None else left - wait_s
            if left is not None and left <= 0:
                raise _not_finished(run, timeout_s)

    def _result(self) -> Flow[RunResult]:
        """What the run has produced so far, without waiting."""
        return RunResult((yield from send_patiently(_calls.run(self._path, 0), self._patience)))

    def _interrupt(self) -> Flow[RunResult]:
        """Stop it: a queued run is aborted, a running one interrupted, a finished one stays as it is."""
        return RunResult((yield from send_patiently(_calls.interrupt_run(self._path), self._patience)))

    def _reply(self, text: str) -> Flow[None]:
        """Answer an ``input_request`` with one line, without its newline.

        :raises Conflict: the run waits for no input.
        """
        yield from send(_calls.reply(self._path, built(InputReply, text=text)))

    def _watch(self, watchers: Watchers) -> Flow[None]:
        """Tell ``watchers`` of every event until the run has finished."""

        def take(event: Event) -> Flow[None]:
            if watchers.on_event is not None:
                yield Tell(watchers.on_event, event)
            if (on_text := watchers.text_callback(event)) is not None:
                yield Tell(on_text, text_of(event))
            if watchers.input is not None and event.type == "input_request":
                yield from self._answer(watchers, event)

        yield Follow(self._tail(None), take)

    def _answer(self, watchers: Watchers, event: Event) -> Flow[None]:
        """Ask for a line and send it. A run that was interrupted meanwhile needs it no more."""
        assert watchers.input is not None
        line = yield from ask(watchers.input, *prompt_of(event))
        try:
            yield from self._reply(line)
        except Conflict:
            return


class RunHandle(RunFlows):
    """A started run. Made by `Context.start_run` and `Context.get_run`."""

    def __init__(self, link: Link, path: str, run_id: str) -> None:
        super().__init__(path, run_id, link.patience)
        self._link = link

    def events(self, cursor: str | None = None) -> Generator[Event, None, None]:
        """Everything that happens in the run, from the oldest event kept (or behind ``cursor``) to ``finished``.

        Reconnects by itself and neither repeats nor leaves out an event; output dropped by the run's cap comes as one
        ``gap`` event.
        """
        return self._link.follow(self._tail(cursor))

    wait = blocking(RunFlows._wait)
    result = blocking(RunFlows._result)
    interrupt = blocking(RunFlows._interrupt)
    reply = blocking(RunFlows._reply)


class AsyncRunHandle(RunFlows):
    """A started run. Made by `AsyncContext.start_run` and `AsyncContext.get_run`."""

    def __init__(self, link: AsyncLink, path: str, run_id: str) -> None:
        super().__init__(path, run_id, link.patience)
        self._link = link

    def events(self, cursor: str | None = None) -> AsyncGenerator[Event, None]:
        """Everything that happens in the run; see `RunHandle.events`."""
        return self._link.follow(self._tail(cursor))

    wait = awaiting(RunFlows._wait)
    result = awaiting(RunFlows._result)
    interrupt = awaiting(RunFlows._interrupt)
    reply = awaiting(RunFlows._reply)


def _not_finished(run: Run, timeout_s: float | None) -> WaitTimeout:
    return WaitTimeout(
        f"{run.id} is still {run.state} after {timeout_s:g} s",
        hint="the run goes on: wait again, or interrupt it",
        details={"bound_s": timeout_s, "run_id": run.id, "state": run.state},
    )
