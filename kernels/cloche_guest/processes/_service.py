"""All processes of the sandbox: the running ones, and the newest finished ones within two bounds."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from pydantic import JsonValue

from cloche.errors import Conflict, Gone, LimitReached, NotFound
from cloche.models import ExecCreate, ExecResult, Process, ProcessCreate
from cloche_guest.children import Account, Children
from cloche_guest.clock import Clock
from cloche_guest.contexts._leftovers import MARK
from cloche_guest.contexts._runs import new_id
from cloche_guest.identity import new_epoch
from cloche_guest.latest_ids import LatestIds
from cloche_guest.processes._capture import capture
from cloche_guest.processes._launch import Order, launch, not_allowed
from cloche_guest.processes._process import MIB, Body, LiveProcess, Naming, Told, mark_of, own_variables
from cloche_guest.programs import argv_of
from cloche_guest.sudo._request import ROOT

MAX_RUNNING: Final = 128
"""Each may keep 9 MiB of output; the sandbox's own limits usually end earlier."""

MAX_FINISHED: Final = 64
MAX_FINISHED_BYTES: Final = 64 * MIB
MAX_REMEMBERED: Final = 20_000
"""Ids of processes that are no longer kept, so that they are `Gone` and never started twice; some 2 MB."""

STOP_GRACE_S: Final = 2.0


class ProcessService:
    """Starts, finds and forgets processes. One instance a guest.

    Args:
        environment: of everything started, asked anew each time.
        may_be_root: whether the sandbox has sudo now.
        tell: gets the events for the sandbox' journal.
    """

    def __init__(
        self,
        children: Children,
        environment: Callable[[], dict[str, str]],
        *,
        account: Account | None,
        workspace: str,
        may_be_root: Callable[[], bool],
        clock: Clock,
        tell: Told,
    ) -> None:
        self._children = children
        self._environment = environment
        self._account = account
        self._workspace = workspace
        self._may_be_root = may_be_root
        self._clock = clock
        self._tell = tell
        self._processes: OrderedDict[str, LiveProcess] = OrderedDict()
        self._gone = LatestIds(MAX_REMEMBERED)

    def all(self) -> list[LiveProcess]:
        """Newest first."""
        return list(reversed(self._processes.values()))

    @property
    def running(self) -> int:
        """Processes that are not over."""
        return sum(not process.is_over for process in self._processes.values())

    def get(self, process_id: str) -> LiveProcess:
        """
        Raises:
            NotFound, Gone
        """
        process = self._processes.get(process_id)
        if process is not None:
            return process
        details: dict[str, JsonValue] = {"kind": "process", "id": process_id}
        if process_id in self._gone:
            raise Gone(
                f"process {process_id} is no longer kept: it was deleted, or {MAX_FINISHED} finished ones are newer",
                details={**details, "limit": MAX_FINISHED, "limit_bytes": MAX_FINISHED_BYTES},
            )
        raise NotFound(f"there is no process {process_id}", details=details)

    def start(self, body: Body, *, service: str | None = None) -> LiveProcess:
        """A process that runs; for a repeated request the one that it made before. A failed start leaves nothing.

        Raises:
            ProcessStartFailed, LimitReached
            Conflict: the id names another process.
            Gone: the id names one that is no longer kept.
        """
        known = self._known(body)
        if known is not None:
            return known
        self._check_limit()
        process_id = body.id or new_id("proc-")
        naming = Naming(process_id, getattr(body, "name", None), service, mark_of(process_id))
        order = self._order(body, naming)
        process = LiveProcess(
            naming, body, order, launch(self._children, order), self._children, self._tell, self._clock
        )
        self._processes[process.id] = process
        self._drop_oldest()
        return process

    async def delete(self, process_id: str) -> Process:
        """Kill it with all it has started, and forget it; returns what it was at the end."""
        process = self.get(process_id)
        await process.kill()
        if self._processes.get(process_id) is process:
            self._forget(process)
        return process.to_model()

    def renew_journals(self) -> None:
        """See `Journal.renew`."""
        for process in self._processes.values():
            process.feed.journal.renew(new_epoch())

    async def stop(self) -> None:
        """End all."""
        processes = list(self._processes.values())
        await asyncio.gather(*(process.stop(STOP_GRACE_S) for process in processes))
        for process in processes:
            process.release()

    def _known(self, body: Body) -> LiveProcess | None:
        if body.id is None:
            return None
        if body.id in self._gone:
            self.get(body.id)
        known = self._processes.get(body.id)
        if known is not None and not known.is_same(body):
            raise Conflict(f"process {body.id} has another body", details={"kind": "process", "id": body.id})
        return known

    def _check_limit(self) -> None:
        if self.running >= MAX_RUNNING:
            raise LimitReached(
                f"this sandbox has {MAX_RUNNING} running processes already",
                hint="end one",
                details={"limit": MAX_RUNNING},
            )

    def _drop_oldest(self) -> None:
        """Finished ones beyond the bounds; those that finish are counted at the next start."""
        over = [process for process in self._processes.values() if process.is_over]
        size = sum(process.feed.journal.stored_bytes for process in over)
        while over and (len(over) > MAX_FINISHED or size > MAX_FINISHED_BYTES):
            oldest = over.pop(0)
            size -= oldest.feed.journal.stored_bytes
            self._forget(oldest)

    def _forget(self, process: LiveProcess) -> None:
        del self._processes[process.id]
        self._gone.add(process.id)
        process.release()

    def _order(self, body: Body, naming: Naming) -> Order:
        if body.user == "root" and not self._may_be_root():
            raise not_allowed()
        env = own_variables(self._environment(), is_root=body.user == "root")
        if body.tty is not None:
            env["TERM"] = "xterm-256color"
        env |= {**body.env, "CLOCHE_PROCESS_ID": naming.id, MARK: naming.mark}
        has_input = isinstance(body, ExecCreate) and bool(body.input.to_bytes())
        return Order(
            argv=argv_of(body),
            cwd=body.cwd or self._workspace,
            env=env,
            account=ROOT if body.user == "root" else self._account,
            tty=body.tty,
            stdin_open=has_input or (isinstance(body, ProcessCreate) and body.stdin == "open"),
        )


def exec_result(process: LiveProcess) -> ExecResult:
    """What an exec has put out so far, within the cap it asked for."""
    assert isinstance(process.body, ExecCreate)
    journal = process.feed.journal
    items = journal.read(journal.start, max_records=1_000_000, max_bytes=1024 * MIB)
    outputs = capture(items, process.counts, process.body.max_output_bytes)
    return ExecResult(
        process=process.to_model(),
        stdout=outputs["stdout"],
        stderr=outputs["stderr"],
        truncated=any(output.omitted_bytes for output in outputs.values()),
    )
