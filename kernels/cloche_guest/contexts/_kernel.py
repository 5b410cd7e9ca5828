"""A live kernel: its process and the channels to it, started and ended together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import zmq

from cloche.errors import InternalError, WaitTimeout
from cloche.models import Failure
from cloche_guest.contexts._channels import Channel, Channels
from cloche_guest.contexts._failure import explain_start
from cloche_guest.contexts._kernel_process import (
    START_TIMEOUT_S,
    KernelProcess,
    KernelSpec,
    KernelStartFailed,
    LaunchKernel,
    start_kernel_process,
)
from cloche_guest.contexts._pending_identity import PendingIdentity
from cloche_guest.contexts._wire import Message

ANSWER_TIMEOUT_S = 10.0
"""For questions while a run is busy. Native code that holds the interpreter lock delays them."""

TAKE_ON: Final = "cloche_identity_request"

OnMessage = Callable[[Channel, Message], None]


class Kernel:
    """One kernel. Messages that answer a question go to whoever asked; all others to `on_message`.

    `has_hooks`: code in it wants to be called when the sandbox becomes another one.
    """

    def __init__(
        self,
        process: KernelProcess,
        context: zmq.Context[zmq.Socket[bytes]],
        on_message: OnMessage,
    ) -> None:
        self.process = process
        self._on_message = on_message
        self._answers: dict[str, asyncio.Future[Message]] = {}
        self.channels = Channels(context, process.base, process.key, self._take)
        self.has_hooks = False
        self.pending = PendingIdentity(lambda content: self.channels.send("control", TAKE_ON, content))

    async def ask(
        self,
        channel: Channel,
        kind: str,
        content: Mapping[str, Any],
        timeout_s: float = ANSWER_TIMEOUT_S,
        metadata: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Send a request and return the content of its reply.

        Raises:
            WaitTimeout: no reply in `timeout_s`, or the kernel ended.
            InternalError: the kernel says that it failed; the message has its words.
        """
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        if channel == "control":
            self.pending.say()  # they are heard in order
        message_id = self.channels.send(channel, kind, content, metadata)
        self._answers[message_id] = answer
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.wait((answer, self.process.exited), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise _no_answer(kind, f"within {timeout_s:g} s", timeout_s) from None
        finally:
            del self._answers[message_id]
        if not answer.done():
            raise _no_answer(kind, "before it ended", timeout_s)
        return _content(kind, answer.result())

    async def take_on(self, identity: Mapping[str, Any]) -> None:
        """Tell it that its sandbox is another one now (`IdentityChange.for_kernel`); return when its hooks have run.

        Raises:
            WaitTimeout, InternalError: as `ask`.
        """
        self.pending.say()
        self.pending.drop()
        await self.ask("control", TAKE_ON, identity)

    async def warm_up(self) -> None:
        """Run a cell that leaves no trace, so that the next one costs no more than those after it.

        Raises:
            WaitTimeout, InternalError: as `ask`.
        """
        cell = {"code": "1", "silent": False, "store_history": True, "stop_on_error": False}
        await self.ask("shell", "execute_request", cell, metadata={"cloche": {"warm_up": True}})

    def become(self, on_message: OnMessage) -> None:
        """What it says goes there from now on."""
        self._on_message = on_message

    async def end(self) -> None:
        """Kill the process with everything it started, and release all."""
        self.pending.drop()
        self.channels.close()
        await self.process.kill()
        self.process.release()

    async def terminate(self, grace_s: float) -> None:
        """As `end`, with a polite TERM first."""
        await self.process.terminate(grace_s)
        await self.end()

    def _take(self, channel: Channel, message: Message) -> None:
        if message.kind == "cloche_hooks":
            self.has_hooks = True
            return
        answer = self._answers.get(message.parent_id)
        if answer is None:
            self._on_message(channel, message)
        elif channel != "iopub" and not answer.done():
            answer.set_result(message)


async def start_kernel(
    spec: KernelSpec,
    launch: LaunchKernel,
    env: Mapping[str, str],
    generation: int,
    *,
    context: zmq.Context[zmq.Socket[bytes]],
    on_message: OnMessage,
) -> Kernel:
    """Start a kernel and return when it answers and everything it publishes arrives.

    Raises:
        InvalidRequest, KernelStartFailed, CannotFork: see `start_kernel_process`.
    """
    process = await start_kernel_process(spec, launch, env, generation)
    kernel = Kernel(process, context, on_message)
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await _first_words(kernel)
    except BaseException as error:
        failure = _start_failure(error, process)
        await kernel.end()
        if failure is not None:
            raise KernelStartFailed(failure) from error
        raise
    process.has_started()
    return kernel


async def _first_words(kernel: Kernel) -> None:
    await _while_alive(kernel.process, kernel.channels.subscribe())
    await kernel.ask("shell", "kernel_info_request", {}, START_TIMEOUT_S)


async def _while_alive(process: KernelProcess, waiting: Any) -> None:
    task = asyncio.ensure_future(waiting)
    try:
        await asyncio.wait((task, process.exited), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise WaitTimeout("the kernel ended")
    finally:
        task.cancel()


def _start_failure(error: BaseException, process: KernelProcess) -> Failure | None:
    if isinstance(error, TimeoutError | WaitTimeout | InternalError):
        words = process.explain().message if process.has_exited else "it does not answer"
        return explain_start(words, process.log_tail())
    return None


def _content(kind: str, message: Message) -> dict[str, Any]:
    if message.content.get("status") == "error":
        name, value = message.content.get("ename"), str(message.content.get("evalue"))[:2000]
        raise InternalError(f"the kernel could not answer {kind}: {name}: {value}")
    return message.content


def _no_answer(kind: str, bound: str, timeout_s: float) -> WaitTimeout:
    return WaitTimeout(
        f"the kernel did not answer {kind} {bound}",
        hint="native code that holds Python's interpreter lock delays every answer; interrupt or restart the context",
        details={"bound_s": timeout_s},
    )
