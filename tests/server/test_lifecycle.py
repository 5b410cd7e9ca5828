"""Pause, suspend, stop, resume and the waking call, through the API, with a fake driver."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from cloche.errors import ErrorBody
from cloche_server.ids import same_memory

from .conftest import Harness


def code_of(response: httpx.Response) -> str:
    return ErrorBody.model_validate_json(response.content).code


async def change(cloche: Harness, sandbox_id: str, what: str) -> dict[str, Any]:
    response = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{what}")
    assert response.status_code == 200, response.text
    return dict(response.json())


async def work(cloche: Harness, sandbox_id: str, **headers: str) -> httpx.Response:
    """A call that goes into the sandbox."""
    url = f"/v1/sandboxes/{sandbox_id}/contexts/default/interrupt"
    return await cloche.client.post(url, headers={name.replace("_", "-"): text for name, text in headers.items()})


async def state_of(cloche: Harness, sandbox_id: str) -> str:
    return str((await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["state"])


@pytest.mark.parametrize(("what", "state"), [("pause", "paused"), ("suspend", "suspended"), ("stop", "stopped")])
async def test_a_sandbox_is_put_to_rest_and_woken_by_request(cloche: Harness, what: str, state: str) -> None:
    sandbox_id = await cloche.sandbox(name="box")
    first = await change(cloche, sandbox_id, what)
    assert (first["state"], first["sandbox_id"]) == (state, sandbox_id)
    assert await change(cloche, sandbox_id, what) | {"duration_s": 0, "paused_s": None} == first | {
        "duration_s": 0,
        "paused_s": None,
    }
    assert await state_of(cloche, sandbox_id) == state
    woken = await change(cloche, sandbox_id, "resume")
    assert woken["state"] == "running"
    assert (await work(cloche, sandbox_id)).status_code == 200
    assert not cloche.server.services.sandboxes.saved.on_disk()


async def test_a_suspend_leaves_nothing_but_its_directory(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    await change(cloche, sandbox_id, "suspend")
    assert cloche.driver.specs == {}
    assert list(cloche.settings.uplinks_dir.iterdir()) == []
    assert cloche.server.services.sandboxes.saved.on_disk() == [sandbox_id]
    await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")
    assert cloche.server.services.sandboxes.saved.on_disk() == []


@pytest.mark.parametrize("what", ["pause", "suspend", "stop"])
async def test_fifty_calls_at_once_wake_a_sandbox_once(cloche: Harness, what: str) -> None:
    sandbox_id = await cloche.sandbox()
    starts: list[str] = []
    start, resume = cloche.driver.start, cloche.driver.resume

    async def counted_start(spec: Any, probe: Any = None) -> None:
        starts.append(spec.sandbox_id)
        await start(spec, probe)

    async def counted_resume(sandbox_id: str) -> None:
        starts.append(sandbox_id)
        await resume(sandbox_id)

    await change(cloche, sandbox_id, what)
    cloche.driver.start, cloche.driver.resume = counted_start, counted_resume  # type: ignore[method-assign]
    answers = await asyncio.gather(*(work(cloche, sandbox_id) for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert starts == [sandbox_id]


async def test_epochs_say_whether_memory_went_on(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    epochs = [(await cloche.client.get(f"/v1/sandboxes/{sandbox_id}")).json()["epoch"]]
    for what in ("pause", "suspend", "stop"):
        await change(cloche, sandbox_id, what)
        epochs.append((await change(cloche, sandbox_id, "resume"))["epoch"])
    first, paused, suspended, stopped = epochs
    assert first == paused
    assert suspended != first
    assert same_memory(first, suspended)
    assert not same_memory(first, stopped)
