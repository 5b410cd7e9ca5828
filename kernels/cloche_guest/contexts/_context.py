"""One context: a kernel, a queue of runs, and the one task that owns both.

Everything that happens (a request, a message of the kernel, its death) only changes fields and sets `Status.changed`;
the task `_serve` wakes, looks at all of it and acts. So there is one place that sends code, interrupts, kills and
restarts, and no two of these can overlap.

The parts: `Status` has the state, `Turns` the runs, `Output` what they show, `Execution` the run that runs now.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from pydantic import JsonValue

from cloche.errors import ClocheError, Conflict, ContextDead, Gone, InternalError, WaitTimeout
from cloche.models import Context, ContextCreate, ContextState, Failure, RunCreate, RunState, RunStatus
from cloche_guest.contexts._channels import Channel
from cloche_guest.contexts._context_journal import ContextJournal
from cloche_guest.contexts._execution import Execution
from cloche_guest.contexts._failure import explain_ours
from cloche_guest.contexts._identity_change import IdentityChange
from cloche_guest.contexts._kernel import ANSWER_TIMEOUT_S, Kernel, start_kernel
from cloche_guest.contexts._kernel_process import KernelSpec, KernelStartFailed
from cloche_guest.contexts._output import Output
from cloche_guest.contexts._rehearsal import rehearsal_options
from cloche_guest.contexts._router import Fact, Shown, read_message
from cloche_guest.contexts._run import RunRecord
from cloche_guest.contexts._status import Status
from cloche_guest.contexts._supervision import Decision, Step, Watch, decide
from cloche_guest.contexts._surroundings import Surroundings
from cloche_guest.contexts._turns import Turns
from cloche_guest.contexts._wire import Message
from cloche_guest.identity import new_epoch

log = logging.getLogger(__name__)

MAX_IDLE_DEATHS: Final = 3
"""A kernel that dies this often in a row without finishing a run is not started again: something kills every kernel."""


class LiveContext:
    """See the module. `unseen`: it is no context of anybody, and ends with one run in this kernel, which is another one's."""

    def __init__(
        self,
        context_id: str,
        body: ContextCreate,
        spec: KernelSpec,
        around: Surroundings,
        *,
        unseen: Kernel | None = None,
    ) -> None:
        self.id = context_id
        self.body = body
        self.journal = ContextJournal()
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._spec = spec
        self._around = around
        self._status = Status(context_id, body.name, self.journal, around.tell, around.clock)
        self._turns = Turns(context_id, self.journal, self._status.touch)
        self.runs = self._turns.runs
        self.history = self._turns.history
        self._output = Output(self.runs, self.journal)
        self._unseen = unseen is not None
        self._kernel: Kernel | None = unseen
        self._execution: Execution | None = None
        self._idle_deaths = 0
        self._restart: asyncio.Future[None] | None = None
        serving = self._serve() if unseen is None else self._run_next(unseen)
        self._task = asyncio.create_task(serving, name=f"context {context_id}")

    # What others ask.

    def to_model(self) -> Context:
        """The context as it is now."""
        return Context(
            id=self.id,
            name=self.body.name,
            language=self.body.language,
            cwd=self.body.cwd,
            env=sorted(self.body.env),
            limits=self.body.limits,
            restart_policy=self.body.restart_policy,
            interrupt_grace_s=self.body.interrupt_grace_s,
            state=self._status.state,
            generation=self._status.generation,
            execution_count=self._status.execution_count,
            queue=self._turns.run_ids,
            created_at=self._status.created_at,
            last_activity_at=self._status.last_activity_at,
            failure=self._status.failure,
        )

    def submit(self, body: RunCreate) -> RunRecord:
        """Put a run into the queue; a repeated request gets the run it made before.

        Raises:
            Conflict: the id names another run.
            ContextDead, Gone, LimitReached
        """
        known = self._turns.find_same(body)
        if known is None:
            self._status.check_alive()
            known = self._turns.add(body)
        return known

    def interrupt(self) -> None:
        """Stop the running run, if there is one."""
        if self._execution is not None:
            self._execution.ask_to_stop()
            self._status.changed.set()

    def interrupt_run(self, run: RunRecord) -> None:
        """Stop a run wherever it is: in the queue it is aborted, running it is interrupted, finished it stays."""
        if run.state is RunState.QUEUED:
            self._turns.cancel(run)
        elif self._execution is not None and self._execution.run is run:
            self.interrupt()

    def answer(self, run: RunRecord, text: str) -> None:
        """Give a line to a run that waits in input().

        Raises:
            Conflict: it waits for nothing.
        """
        if run.input_request is None or self._kernel is None:
            raise Conflict(f"run {run.id} does not wait for input", details={"kind": "run", "id": run.id})
        run.input_request = None
        self._kernel.channels.send("stdin", "input_reply", {"value": text, "status": "ok"})
        self._status.touch()

    async def restart(self) -> None:
        """Return when a new kernel answers, or raise why there is none.

        Raises:
            KernelStartFailed, InvalidRequest
        """
        if self._restart is None:
            self._restart = asyncio.get_running_loop().create_future()
            self._restart.add_done_callback(_retrieve)
        self._status.changed.set()
        await asyncio.shield(self._restart)

    async def delete(self, grace_s: float | None = None) -> None:
        """End everything. `grace_s`: let the kernel end by itself for that long."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if not self.started.done():
            self.started.set_exception(
                Gone(f"context {self.id} was deleted", details={"kind": "context", "id": self.id})
            )
        await self._end_kernel(grace_s)
        self._turns.drop_all(explain_ours("deleted"))
        self._status.become(ContextState.DEAD, explain_ours("deleted"))
        self.journal.feed.close()

    async def ask(self, kind: str, content: dict[str, Any], timeout_s: float = ANSWER_TIMEOUT_S) -> dict[str, Any]:
        """A question that the kernel answers while it is busy, too.

        Raises:
            ContextDead, WaitTimeout, InternalError
        """
        self._status.check_alive()
        if self._kernel is None:
            await asyncio.shield(self.started)
        if self._kernel is None:
            raise ContextDead(f"context {self.id} has no kernel right now", details={"state": self._status.state.value})
        return await self._kernel.ask("control", kind, content, timeout_s)

    async def adopt(self, change: IdentityChange) -> None:
        """Tell the kernel that the sandbox is another one now; return when it has taken that on and its hooks have run, or
        will do so before anything else.

        Raises:
            WaitTimeout, InternalError, ClocheError of a start that fails
        """
        if self._kernel is None:
            await asyncio.shield(self.started)
        if self._kernel is not None and not self.will_adopt(change):
            await self._kernel.take_on(change.for_kernel(self.id, self.body.env))

    def will_adopt(self, change: IdentityChange) -> bool:
        """As `adopt`, without a wait: the kernel hears of it with its next cell. False: it must hear of it before."""
        has_runs = self._execution is not None or bool(self._turns.run_ids)
        if self._kernel is None or not change.may_wait or has_runs or self._kernel.has_hooks:
            return False
        self._kernel.pending.put(change.for_kernel(self.id, self.body.env))
        return True

    async def rehearse(self, body: RunCreate) -> RunRecord | None:
        """A run the whole way, so that the next one costs no more than those after it: what was restored is slow at its first
        touch. It leaves no trace here, as it is in a context of its own, and none in the kernel. None: something runs.

        Raises:
            WaitTimeout: the kernel does not answer.
        """
        kernel = self._kernel
        if kernel is None or self._status.state is not ContextState.IDLE or self.works:
            return None
        around = replace(self._around, tell=_to_nobody)
        other = LiveContext(self.id, self.body, self._spec, around, unseen=kernel)
        run = other.submit(body)
        kernel.become(lambda *heard: (other if other._is_about(heard[1]) else self)._on_message(*heard))
        has_exited = kernel.process.exited
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await asyncio.wait((other._task, has_exited), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise WaitTimeout(f"the kernel did not answer within {ANSWER_TIMEOUT_S:g} s") from None
        finally:
            kernel.become(self._on_message)
            other._task.cancel()
        return run

    def renew_journals(self) -> None:
        """See `Journal.renew`."""
        for feed in (self.journal.feed, *(run.feed for run in self.runs.all())):
            feed.journal.renew(new_epoch())

    @property
    def worked_at(self) -> float:
        """When something last happened in it, on the clock of the guest."""
        return self._status.worked_at

    @property
    def works(self) -> bool:
        """A run runs or waits for its turn, or the kernel is on its way. Waiting for input is no work."""
        if self._status.state in (ContextState.STARTING, ContextState.RESTARTING):
            return True
        if self._execution is None or self._execution.run.input_request is None:
            return self._execution is not None or bool(self._turns.run_ids)
        return False

    @property
    def tree(self) -> tuple[int, str] | None:
        """Of its kernel, while there is one."""
        return self._kernel.process.tree if self._kernel is not None else None

    # The task.

    async def _serve(self) -> None:
        try:
            await self._act_for_ever()
        except Exception as error:
            log.exception("context %s is given up", self.id)
            await self._end_kernel(None)
            self._start_failed(InternalError(f"a defect ended context {self.id}: {error!r}"))

    async def _act_for_ever(self) -> None:
        while True:
            if self._kernel is None and self._status.state is not ContextState.DEAD:
                await self._start()
            elif self._restart is not None:
                await self._replace_kernel(explain_ours("restarted"))
            elif self._kernel is not None and self._kernel.process.has_exited:
                await self._kernel_died()
            elif self._kernel is not None and self._turns.has_waiting:
                await self._run_next(self._kernel)
            else:
                await self._wait(None)

    async def _wait(self, until: float | None) -> None:
        """Until something changed, or the clock may say `until`."""
        if until is None:
            await self._status.changed.wait()
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, until - self._around.clock())):
                    await self._status.changed.wait()
        self._status.changed.clear()

    async def _start(self) -> None:
        self._status.generation += 1
        try:
            async with self._around.starts:
                self._kernel = await self._new_kernel(self._around.environment() | self.body.env)
        except ClocheError as error:
            self._start_failed(error)
            return
        self._kernel.process.exited.add_done_callback(lambda _: self._status.changed.set())
        self._status.execution_count = 0
        self._status.become(ContextState.IDLE, self._status.failure)
        process = self._kernel.process
        self.journal.note(
            "kernel_started",
            {
                "generation": self._status.generation,
                "by": "spawn" if process.cold else "fork",
                "not_forked": process.cold or None,
                "ahead": process.ahead,
            },
        )
        self._resolve_start(None)

    async def _new_kernel(self, env: Mapping[str, str]) -> Kernel:
        spare = await self._around.spares.take(self._spec, env, self._status.generation, self._on_message)
        return spare or await start_kernel(
            self._spec,
            self._around.launcher.launch,
            env,
            self._status.generation,
            context=self._around.zmq_context,
            on_message=self._on_message,
        )

    def _start_failed(self, error: ClocheError) -> None:
        failure = error.failure if isinstance(error, KernelStartFailed) else None
        failure = failure or Failure(reason="start_failed", message=error.message)
        self._status.become(ContextState.DEAD, failure)
        self._turns.drop_all(failure)
        self._resolve_start(error)

    def _resolve_start(self, error: ClocheError | None) -> None:
        waiting, self._restart = [self.started, self._restart], None
        for future in waiting:
            if future is None or future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                _retrieve(future)

    async def _kernel_died(self) -> None:
        assert self._kernel is not None
        failure = self._kernel.process.explain()
        await self._end_kernel(None)
        self._idle_deaths += 1
        if self.body.restart_policy == "never" or self._idle_deaths > MAX_IDLE_DEATHS:
            self._status.become(ContextState.DEAD, failure)
            self._turns.drop_all(failure)
        else:
            self._status.become(ContextState.RESTARTING, failure)

    async def _replace_kernel(self, failure: Failure) -> None:
        """A restart that was asked for: the queue is emptied, the variables are gone, nothing failed."""
        self._status.become(ContextState.RESTARTING, None)
        await self._end_kernel(None)
        self._turns.drop_all(failure)
        self._idle_deaths = 0

    async def _end_kernel(self, grace_s: float | None) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            await (kernel.end() if grace_s is None else kernel.terminate(grace_s))

    # One run.

    async def _run_next(self, kernel: Kernel) -> None:
        run = self._turns.start_next()
        run.start(self._status.generation)
        self._status.become(ContextState.BUSY, self._status.failure)
        self.journal.note("run_started", {"run_id": run.id})
        execution = self._execute(kernel, run)
        self._execution = execution
        try:
            await self._supervise(kernel, execution)
        except BaseException:
            self._turns.end(
                run, RunStatus.FAILED, explain_ours("deleted"), self._around.clock() - execution.watch.started_at
            )
            raise
        finally:
            self._execution = None

    def _execute(self, kernel: Kernel, run: RunRecord) -> Execution:
        body = run.body
        content = {
            "code": body.code,
            "silent": False,
            "store_history": body.store_history,
            "user_expressions": {},
            "allow_stdin": body.allow_stdin,
            "stop_on_error": False,  # the queue is ours; ipykernel would abort whatever comes next
        }
        options = self._rehearsed() if self._unseen else {"env": body.env, **kernel.pending.with_cell()}
        message_id = kernel.channels.send("shell", "execute_request", content, {"cloche": options})
        self._output.expect(message_id, run)
        now = self._around.clock()
        return Execution(run, message_id, Watch(now, body.timeout_s, self.body.interrupt_grace_s))

    def _rehearsed(self) -> dict[str, Any]:
        return rehearsal_options(self.id, self._around.environment(), self.body.env)

    async def _supervise(self, kernel: Kernel, execution: Execution) -> None:
        while True:
            watch = replace(execution.watch, dead=kernel.process.has_exited)
            if self._restart is not None:
                await self._finish_by_restart(execution)
                return
            decision = decide(watch, self._around.clock())
            if decision.step is Step.FINISH:
                await self._finish(kernel, execution)
                return
            if decision.step is Step.WAIT:
                await self._wait(decision.until)
            else:
                await self._do(kernel, execution, decision)

    async def _do(self, kernel: Kernel, execution: Execution, decision: Decision) -> None:
        now = self._around.clock()
        if decision.step is Step.INTERRUPT:
            kernel.process.interrupt()
            # Wakes an event loop that sleeps: without it a foreign ipykernel notices the signal when the sleep is over.
            kernel.channels.send("shell", "kernel_info_request", {})
            execution.interrupted(now, decision.reason)
        elif decision.step is Step.PROBE:
            execution.probed(now, kernel.channels.send("shell", "kernel_info_request", {}))
        elif decision.step is Step.KILL:
            execution.run.kernel_restarted = True
            await self._end_kernel(None)

    async def _finish(self, kernel: Kernel, execution: Execution) -> None:
        run, duration_s = execution.run, self._around.clock() - execution.watch.started_at
        if kernel.process.has_exited:
            await kernel.channels.drain_dead()
        kernel.channels.drain()
        if execution.reply is not None:
            self._status.execution_count = execution.reply.execution_count or self._status.execution_count
            run.execution_count = run.execution_count or execution.reply.execution_count
        status, failure = execution.verdict(kernel.process.explain() if kernel.process.has_exited else None)
        run.kernel_restarted |= status is RunStatus.FAILED and self.body.restart_policy == "on_death"
        if status is RunStatus.ERROR and run.error is None and execution.reply and execution.reply.error:
            run.add_error(execution.reply.error)
        self._turns.remember(run)
        self._idle_deaths = 0
        if self._kernel is None:
            self._status.become(ContextState.RESTARTING, failure)
        elif not kernel.process.has_exited:
            self._status.become(ContextState.IDLE, self._status.failure)
        self._turns.finish(run, status, failure, duration_s)

    async def _finish_by_restart(self, execution: Execution) -> None:
        execution.run.kernel_restarted = True
        self._turns.remember(execution.run)
        duration_s = self._around.clock() - execution.watch.started_at
        self._turns.end(execution.run, RunStatus.FAILED, explain_ours("restarted"), duration_s)

    # What the kernel says.

    def _on_message(self, channel: Channel, message: Message) -> None:
        execution = self._execution
        if execution is not None and message.parent_id == execution.message_id:
            for fact in read_message(message):
                self._take(execution, fact)
        elif execution is not None and message.parent_id == execution.probe_id and channel == "shell":
            execution.probe_answered()
            self._status.changed.set()
        elif channel == "iopub":
            for fact in read_message(message):
                self._output.take_late(message.parent_id, fact)

    def _is_about(self, message: Message) -> bool:
        """It is about the run that runs now."""
        execution = self._execution
        return execution is not None and message.parent_id in (execution.message_id, execution.probe_id)

    def _take(self, execution: Execution, fact: Fact) -> None:
        if isinstance(fact, Shown):
            self._output.show(execution.run, fact)
        elif execution.take(fact, self._around.clock()):
            self._status.changed.set()


def _to_nobody(_type: str, _data: Mapping[str, JsonValue]) -> None:
    """Of a rehearsal."""


def _retrieve(future: asyncio.Future[None]) -> None:
    """Mark an exception as seen: nobody may be waiting for this future."""
    if not future.cancelled():
        future.exception()
