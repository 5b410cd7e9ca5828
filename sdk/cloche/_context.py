"""Contexts: live kernels of one sandbox. `Context` blocks, `AsyncContext` awaits; `ContextFlows` says what they do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from typing import TypedDict, Unpack

from cloche import _calls, models
from cloche._answers import built
from cloche._flow import Flow, awaiting, blocking, send, send_patiently
from cloche._ids import new_run_id
from cloche._link import AsyncLink, Link
from cloche._patience import Patience
from cloche._result import RunResult
from cloche._run_handle import WAIT_S, AsyncRunHandle, RunFlows, RunHandle
from cloche._tail import Tail
from cloche._watchers import OnEvent, OnInput, OnText, Watchers
from cloche.models import Event, RunCreate, RunState


class StartOptions(TypedDict, total=False):
    """How a run is to run; None: the server's default."""

    timeout_s: float | None
    env: Mapping[str, str] | None
    allow_stdin: bool | None
    stop_on_error: bool | None
    store_history: bool | None


class ContextFlows:
    """What can be done with a context, as flows."""

    def __init__(self, sandbox_id: str, context_id: str, info: models.Context | None, patience: Patience) -> None:
        self.sandbox_id = sandbox_id
        self.id = context_id
        self._info = info
        self._path = _calls.context_path(sandbox_id, context_id)
        self._patience = patience

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.sandbox_id}>"

    @property
    def info(self) -> models.Context | None:
        """What the server last said of this context; None when it was not asked yet. See ``refresh``."""
        return self._info

    def _run_path(self, run_id: str) -> str:
        return f"{self._path}/runs/{_calls.segment('run', run_id)}"

    def _tail(self, cursor: str | None) -> Tail:
        return Tail(f"{self._path}/events", cursor=cursor, last_type=None, patience=self._patience)

    def _run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        on_event: OnEvent | None = None,
        on_stdout: OnText | None = None,
        on_stderr: OnText | None = None,
        allow_stdin: bool | None = None,
        input: OnInput | None = None,
        stop_on_error: bool | None = None,
        store_history: bool | None = None,
    ) -> Flow[RunResult]:
        """Run ``code`` and wait until it has finished.

        What the code raises does not raise here: look at ``result.ok`` or call ``result.raise_for_error()``. A lost
        connection never runs the code twice.

        :param timeout_s: seconds it may run, counted from its start, not in the queue; then it is interrupted and the
            result says ``timed_out``. The server's default is 600.
        :param env: environment variables for this run only.
        :param on_event: called with each `cloche.models.Event` while the code runs.
        :param on_stdout: called with each piece of text written to stdout; ``on_stderr`` likewise.
        :param input: called with ``(prompt, password)`` when the code calls ``input()``; answers one line.
        :param allow_stdin: false makes ``input()`` raise in the code. Default: whether ``input`` is given.
        :param stop_on_error: false keeps the runs queued behind this one when it raises.
        :param store_history: false keeps it out of the kernel's history.
        """
        watchers = Watchers(on_event, on_stdout, on_stderr, input)
        options: StartOptions = {
            "timeout_s": timeout_s,
            "env": env,
            "allow_stdin": input is not None if allow_stdin is None else allow_stdin,
            "stop_on_error": stop_on_error,
            "store_history": store_history,
        }
        body = _run_body(code, options)
        run = yield from self._post(body, 0 if watchers.any else WAIT_S)
        handle = RunFlows(self._run_path(run.id), run.id, self._patience)
        if watchers.any:
            yield from handle._watch(watchers)
            return (yield from handle._wait())
        return RunResult(run) if run.state is RunState.FINISHED else (yield from handle._wait())

    def _start(self, code: str, options: StartOptions) -> Flow[models.Run]:
        return (yield from self._post(_run_body(code, options), 0))

    def _post(self, body: RunCreate, wait_s: float) -> Flow[models.Run]:
        return (yield from send_patiently(_calls.create_run(self._path, body, wait_s), self._patience))

    def _refresh(self) -> Flow[models.Context]:
        """Ask the server for `info` anew."""
        return self._keep((yield from send_patiently(_calls.context(self._path), self._patience)))

    def _interrupt(self) -> Flow[models.Context]:
        """Interrupt the running run; the variables stay."""
        return self._keep((yield from send(_calls.interrupt_context(self._path))))

    def _restart(self) -> Flow[models.Context]:
        """Start a new kernel: all variables are gone, queued runs are aborted."""
        return self._keep((yield from send(_calls.restart_context(self._path))))

    def _delete(self) -> Flow[models.Context]:
        """End the kernel and forget the context."""
        return self._keep((yield from send(_calls.delete_context(self._path))))

    def _keep(self, info: models.Context) -> models.Context:
        self._info = info
        return info

    def _complete(self, code: str, cursor_pos: int | None = None) -> Flow[models.CompleteReply]:
        """What could stand at ``cursor_pos`` (in code points; None: the end) of ``code``."""
        body = built(models.CompleteRequest, code=code, cursor_pos=cursor_pos)
        return (yield from send_patiently(_calls.complete(self._path, body), self._patience))

    def _inspect(self, code: str, cursor_pos: int | None = None, *, source: bool = False) -> Flow[models.InspectReply]:
        """The documentation (with ``source``, the source too) of the name at ``cursor_pos`` of ``code``."""
        body = built(models.InspectRequest, code=code, cursor_pos=cursor_pos, detail_level=int(source))
        return (yield from send_patiently(_calls.inspect(self._path, body), self._patience))

    def _history(self, limit: int = 100) -> Flow[list[models.HistoryEntry]]:
        """The newest ``limit`` (1 to 1000) inputs, oldest first."""
        return (yield from send_patiently(_calls.history(self._path, limit), self._patience)).entries

    def _variables(self) -> Flow[models.Variables]:
        """The names of the context's namespace with type, shape and size."""
        return (yield from send_patiently(_calls.variables(self._path), self._patience))

    def _runs(self) -> Flow[list[models.RunSummary]]:
        """The runs the context still keeps, oldest first."""
        return (yield from send_patiently(_calls.runs(self._path), self._patience)).runs


class Context(ContextFlows):
    """A live kernel whose variables persist between runs. Made by `Sandbox.contexts`."""

    def __init__(self, link: Link, sandbox_id: str, context_id: str, info: models.Context | None = None) -> None:
        super().__init__(sandbox_id, context_id, info, link.patience)
        self._link = link

    def get_run(self, run_id: str) -> RunHandle:
        """A handle for a run that was started earlier, also by another client."""
        return RunHandle(self._link, self._run_path(run_id), run_id)

    def start_run(self, code: str, **options: Unpack[StartOptions]) -> RunHandle:
        """Start ``code`` and return at once. Options as in `run`, less the callbacks."""
        return self.get_run(self._link.drive(self._start(code, options)).id)

    def events(self, cursor: str | None = None) -> Generator[Event, None, None]:
        """What happens in the context: runs queued, started and finished, kernel states, late output.

        Never ends by itself. Reconnects, and neither repeats nor leaves out an event.

        :raises Gone: the context was deleted.
        """
        return self._link.follow(self._tail(cursor))

    run = blocking(ContextFlows._run)
    refresh = blocking(ContextFlows._refresh)
    interrupt = blocking(ContextFlows._interrupt)
    restart = blocking(ContextFlows._restart)
    delete = blocking(ContextFlows._delete)
    complete = blocking(ContextFlows._complete)
    inspect = blocking(ContextFlows._inspect)
    history = blocking(ContextFlows._history)
    variables = blocking(ContextFlows._variables)
    runs = blocking(ContextFlows._runs)


class AsyncContext(ContextFlows):
    """A live kernel whose variables persist between runs. Made by `AsyncSandbox.contexts`."""

    def __init__(self, link: AsyncLink, sandbox_id: str, context_id: str, info: models.Context | None = None) -> None:
        super().__init__(sandbox_id, context_id, info, link.patience)
        self._link = link

    def get_run(self, run_id: str) -> AsyncRunHandle:
        """A handle for a run that was started earlier, also by another client."""
        return AsyncRunHandle(self._link, self._run_path(run_id), run_id)

    async def start_run(self, code: str, **options: Unpack[StartOptions]) -> AsyncRunHandle:
        """Start ``code`` and return at once. Options as in `run`, less the callbacks."""
        return self.get_run((await self._link.drive(self._start(code, options))).id)

    def events(self, cursor: str | None = None) -> AsyncGenerator[Event, None]:
        """What happens in the context; see `Context.events`."""
        return self._link.follow(self._tail(cursor))

    run = awaiting(ContextFlows._run)
    refresh = awaiting(ContextFlows._refresh)
    interrupt = awaiting(ContextFlows._interrupt)
    restart = awaiting(ContextFlows._restart)
    delete = awaiting(ContextFlows._delete)
    complete = awaiting(ContextFlows._complete)
    inspect = awaiting(ContextFlows._inspect)
    history = awaiting(ContextFlows._history)
    variables = awaiting(ContextFlows._variables)
    runs = awaiting(ContextFlows._runs)


def _run_body(code: str, options: StartOptions) -> RunCreate:
    """The body, with an id of ours: that makes the call repeatable."""
    return built(RunCreate, id=new_run_id(), code=code, **options)
