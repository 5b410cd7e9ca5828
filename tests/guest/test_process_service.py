"""The service of processes in this process, for what a real guest cannot be made to do."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from guest_process import guest_environ

from cloche.errors import Gone, LimitReached, ProcessEnded
from cloche.models import ExitCondition, LogCondition, ProcessCreate, ProcessState, ProcessWait
from cloche_guest.children import Children
from cloche_guest.processes import ProcessService, _process, _service
from cloche_guest.processes._wait import wait_for


@pytest.fixture
def children() -> Children:
    return Children(collect_orphans=False)


@pytest.fixture
async def service(children: Children, tmp_path: Path) -> AsyncIterator[ProcessService]:
    """Nobody collects children until a test says so."""
    made = ProcessService(
        children,
        lambda: guest_environ(tmp_path, tmp_path),
        account=None,
        workspace=str(tmp_path),
        may_be_root=lambda: False,
        clock=time.monotonic,
        tell=lambda _type, _data: None,
    )
    yield made
    children.watch()
    await made.stop()
    children.unwatch()


async def test_a_process_whose_end_nobody_saw_is_lost_and_has_no_exit_status(
    service: ProcessService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cloudflare/sandbox-sdk#873: an exit code 0 was invented when supervision was lost."""
    monkeypatch.setattr(_process, "LOOK_S", 0.05)
    process = service.start(ProcessCreate(shell="echo last words; exit 0"))
    pid = process.to_model().pid
    waiting = asyncio.create_task(wait_for(process, ProcessWait(conditions=[ExitCondition()])))
    while os.waitpid(pid, os.WNOHANG) == (0, 0):  # a second owner takes the status
        await asyncio.sleep(0.01)
    async with asyncio.timeout(60):
        await process.ended.wait()
    model = process.to_model()
    assert (model.state, model.exit) == (ProcessState.LOST, None)
    kinds = [item.kind async for item in process.feed.follow(process.feed.journal.start)]  # type: ignore[union-attr]
    assert kinds[-1] == "lost"
    assert "exited" not in kinds
    with pytest.raises(ProcessEnded, match="was lost"):
        await waiting


async def test_running_processes_are_limited(
    service: ProcessService, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_service, "MAX_RUNNING", 2)
    children.watch()
    first = service.start(ProcessCreate(argv=["sleep", "100"]))
    service.start(ProcessCreate(argv=["sleep", "100"]))
    with pytest.raises(LimitReached) as error:
        service.start(ProcessCreate(argv=["true"]))
    assert error.value.details == {"limit": 2}
    await service.delete(first.id)
    service.start(ProcessCreate(argv=["sleep", "100"]))


async def test_finished_journals_are_bounded_in_bytes(
    service: ProcessService, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_service, "MAX_FINISHED_BYTES", 1_000_000)
    children.watch()
    made = []
    for _ in range(4):
        made.append(service.start(ProcessCreate(argv=["head", "-c", "400000", "/dev/zero"])))
        await made[-1].ended.wait()
    with pytest.raises(Gone):
        service.get(made[0].id)
    service.get(made[2].id)


async def test_what_reads_a_gap_goes_on(
    service: ProcessService, children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_process, "MAX_BYTES", 200_000)
    monkeypatch.setattr(_process, "HEAD_BYTES", 1000)
    children.watch()
    process = service.start(ProcessCreate(shell="head -c 5000000 /dev/zero; echo end; exec sleep 100"))
    wait = ProcessWait(conditions=[LogCondition(pattern="end")])
    assert (await wait_for(process, wait)).met
    assert (await wait_for(process, wait)).met  # the second one meets the gap
