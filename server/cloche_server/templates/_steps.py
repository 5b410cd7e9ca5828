"""The steps that make a fresh sandbox what a template says: the set-up script, contexts and their code, services.

Each runs in the guest and writes what it prints into the log. A step that fails, or takes longer than its bound, raises
`StepFailed` with the reason in words; what broke between server and guest comes as `ClocheError`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Sequence
from typing import Final, Literal
from urllib.parse import urlencode

from cloche.errors import ClocheError, ContextStartFailed
from cloche.models import (
    Context,
    Event,
    Process,
    ProcessCreate,
    ProcessOutput,
    ProcessState,
    Run,
    RunCreate,
    RunStatus,
    Service,
    ServiceCreate,
    ServiceState,
    TemplateContext,
)
from cloche.models.contexts import ContextCreate
from cloche.models.runs import RunState
from cloche_server.templates._guest import Guest
from cloche_server.templates._log import BuildLog

SCRIPT: Final = "/tmp/.cloche-setup.sh"
"""A script may be longer than one argument can be, and its stdin is free for what it starts."""

PAGE_WAIT_S: Final = 20.0
POLL_S: Final = 0.1
LAST_OUTPUT_S: Final = 0.5
"""For output that is still on its way when the program has exited."""

StepName = Literal["start", "setup", "context", "service", "snapshot"]


class StepFailed(Exception):
    """``step`` as in the details of `TemplateBuildFailed`."""

    def __init__(self, step: StepName, message: str) -> None:
        super().__init__(message)
        self.step = step


async def run_setup(guest: Guest, script: str, bound_s: float, log: BuildLog) -> None:
    """As the user, in the workspace, with ``bash -e``: the first command that fails ends it."""
    log.line("== setup")
    await guest.call("PUT", f"/v1/files/content?{urlencode({'path': SCRIPT, 'mode': '0700'})}", script.encode())
    body = ProcessCreate(argv=["/bin/bash", "-e", SCRIPT], timeout_s=bound_s)
    process = await guest.ask("POST", "/v1/processes", Process, body)
    await _follow(guest, process.id, bound_s + 60, log)
    process = await guest.ask("GET", f"/v1/processes/{process.id}", Process)
    await guest.call("POST", "/v1/files/remove", _remove(SCRIPT))
    _check_exit(process, bound_s)
    if process.state is ProcessState.FINISHED:
        # Deleting one that lingers would kill the daemons it has started on purpose.
        await guest.call("DELETE", f"/v1/processes/{process.id}")


def _remove(path: str) -> bytes:
    return f'{{"path": "{path}"}}'.encode()


async def _follow(guest: Guest, process_id: str, bound_s: float, log: BuildLog) -> None:
    """Its output goes into the log until it has exited."""
    deadline = time.monotonic() + bound_s
    cursor, exited, at_end = "", False, False
    while not at_end and time.monotonic() < deadline:
        wait_s = LAST_OUTPUT_S if exited else PAGE_WAIT_S
        query = urlencode({"wait_s": wait_s, **({"cursor": cursor} if cursor else {})})
        path = f"/v1/processes/{process_id}/output?{query}"
        page = await guest.ask("GET", path, ProcessOutput, bound_s=wait_s + 15)
        for event in page.events:
            log.add(_text_of(event))
        at_end = page.at_end or (exited and not page.events)
        exited = exited or any(event.type == "exited" for event in page.events)
        cursor = page.cursor


def _text_of(event: Event) -> str:
    if event.type not in ("stdout", "stderr"):
        return ""
    if "text" in event.data:
        return str(event.data["text"])
    try:
        return base64.b64decode(str(event.data.get("base64", ""))).decode("utf-8", "replace")
    except binascii.Error:
        return "\ufffd"


def _check_exit(process: Process, bound_s: float) -> None:
    how = process.exit
    if how is None:
        raise StepFailed("setup", "the set-up script did not end, and nobody knows why")
    if how.timed_out:
        raise StepFailed("setup", f"the set-up script took longer than {bound_s:g} s and was ended")
    if how.out_of_memory:
        raise StepFailed("setup", "the set-up script was killed because the sandbox had no memory left")
    if how.code != 0:
        what = f"exited with {how.code}" if how.code is not None else f"was ended by {how.signal}"
        raise StepFailed("setup", f"the set-up script {what}")


async def start_contexts(guest: Guest, wanted: Sequence[TemplateContext], bound_s: float, log: BuildLog) -> None:
    """In their order. Code leaves no trace in the history, so that the first cell of a user is number one."""
    for one in wanted:
        context_id = await _start_context(guest, one.context, log)
        if one.code:
            await _run_code(guest, context_id, one.code, bound_s, log)


async def _start_context(guest: Guest, wanted: ContextCreate | None, log: BuildLog) -> str:
    log.line(f"== context {wanted.name or wanted.language if wanted else 'default'}")
    try:
        if wanted is None:
            await start_default_context(guest)
            return "default"
        return (await guest.ask("POST", "/v1/contexts", Context, wanted, bound_s=90)).id
    except ContextStartFailed as error:
        raise StepFailed("context", f"a context did not start: {error.message}") from error


async def start_default_context(guest: Guest) -> None:
    """Any use of it starts it; asking for its variables changes nothing in it."""
    await guest.call("GET", "/v1/contexts/default/variables", bound_s=90)


async def _run_code(guest: Guest, context_id: str, code: str, bound_s: float, log: BuildLog) -> None:
    body = RunCreate(code=code, timeout_s=bound_s, store_history=False)
    path = f"/v1/contexts/{context_id}/runs"
    run = await guest.ask("POST", f"{path}?wait_s={PAGE_WAIT_S:g}", Run, body, bound_s=PAGE_WAIT_S + 30)
    deadline = time.monotonic() + bound_s + 90
    while run.state is not RunState.FINISHED and time.monotonic() < deadline:
        run = await guest.ask("GET", f"{path}/{run.id}?wait_s={PAGE_WAIT_S:g}", Run, bound_s=PAGE_WAIT_S + 30)
    _log_outputs(run, log)
    if run.status is not RunStatus.OK:
        raise StepFailed("context", f"the code of a context {_why(run, bound_s)}")


def _log_outputs(run: Run, log: BuildLog) -> None:
    for output in run.outputs:
        if output.type in ("stdout", "stderr"):
            log.add(output.text)
        elif output.type == "error":
            log.line("\n".join(output.traceback))


def _why(run: Run, bound_s: float) -> str:
    if run.error is not None:
        return f"raised {run.error.name}: {run.error.value}"
    if run.status is RunStatus.TIMED_OUT or run.status is None:
        return f"took longer than {bound_s:g} s"
    return f"ended as {run.status.value}" + (f": {run.failure.message}" if run.failure else "")


async def declare_services(guest: Guest, wanted: Sequence[ServiceCreate], bound_s: float, log: BuildLog) -> None:
    """In their order; then all of them must be ready within ``bound_s``."""
    for one in wanted:
        log.line(f"== service {one.name}")
        try:
            await guest.ask("POST", "/v1/services", Service, one)
        except ClocheError as error:
            raise StepFailed("service", f"service {one.name} was refused: {error.message}") from error
    await wait_for_services(guest, [one.name for one in wanted], bound_s)


async def wait_for_services(guest: Guest, names: Sequence[str], bound_s: float) -> None:
    """Until each is ready; one that will not be started again is told at once."""
    deadline = time.monotonic() + bound_s
    for name in names:
        while not await _is_ready(guest, name):
            if time.monotonic() > deadline:
                raise StepFailed("service", f"service {name} was not ready in {bound_s:g} s")
            await asyncio.sleep(POLL_S)


async def _is_ready(guest: Guest, name: str) -> bool:
    service = await guest.ask("GET", f"/v1/services/{name}", Service)
    if service.state in (ServiceState.FAILED, ServiceState.ENDED):
        raise StepFailed("service", f"service {name} is {service.state.value}: {service.problem or 'it ended'}")
    return service.state is ServiceState.READY
