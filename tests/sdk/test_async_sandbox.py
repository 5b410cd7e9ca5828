"""`AsyncSandbox` against a real HTTP server that plays the protocol. The rules are those of `Sandbox`: same flows."""

from __future__ import annotations

import asyncio

import pytest
from protocol_app import App

from cloche import AsyncClient, AsyncSandbox, NotFound, RunStatus, WaitTimeout
from cloche.models import SandboxState


async def test_entering_and_awaiting_both_work(async_client: AsyncClient, app: App) -> None:
    async with AsyncSandbox.create(client=async_client, name="a") as made:
        assert (await made.run("1+1")).text == "2"
    assert app.sandboxes[made.id].state is SandboxState.DELETED
    kept = await AsyncSandbox.create(client=async_client, name="b")
    async with await AsyncSandbox.connect("b", client=async_client) as again:
        assert again.id == kept.id
    assert app.sandboxes[kept.id].state is SandboxState.RUNNING


async def test_an_unknown_sandbox_is_not_found(async_client: AsyncClient) -> None:
    with pytest.raises(NotFound):
        await AsyncSandbox.connect("nobody", client=async_client)


async def test_callbacks_may_be_coroutine_functions(async_client: AsyncClient) -> None:
    out: list[str] = []

    async def on_stdout(text: str) -> None:
        await asyncio.sleep(0)
        out.append(text)

    async def answer(_prompt: str, _password: bool) -> str:
        return "Ada"

    async with AsyncSandbox.create(client=async_client) as sandbox:
        result = await sandbox.run("print a\ninput name?", on_stdout=on_stdout, input=answer)
    assert out == ["a\n", "read Ada\n"]
    assert result.ok


async def test_runs_go_on_side_by_side(async_client: AsyncClient) -> None:
    async with AsyncSandbox.create(client=async_client) as sandbox:
        contexts = [await sandbox.contexts.create() for _ in range(5)]
        results = await asyncio.gather(*(context.run(f"value {n}") for n, context in enumerate(contexts)))
        assert [result.text for result in results] == ["0", "1", "2", "3", "4"]
        assert len(await sandbox.contexts.list()) == 5
        assert (await sandbox.contexts.get(contexts[0].id)).id == contexts[0].id


async def test_a_started_run_is_watched_and_interrupted(async_client: AsyncClient) -> None:
    async with AsyncSandbox.create(client=async_client) as sandbox:
        handle = await sandbox.contexts.default.start_run("print a\nhang")
        kinds = []
        async for event in handle.events():
            kinds.append(event.type)
            if event.type == "stdout":
                await handle.interrupt()
        assert kinds == ["started", "stdout", "error", "finished"]
        assert (await handle.wait()).status is RunStatus.INTERRUPTED
        assert (await sandbox.contexts.default.get_run(handle.id).result()).finished


async def test_cancelling_a_wait_stops_nothing(async_client: AsyncClient, app: App) -> None:
    async with AsyncSandbox.create(client=async_client) as sandbox:
        handle = await sandbox.contexts.default.start_run("hang")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle.wait(), 0.05)
        with pytest.raises(WaitTimeout):
            await handle.wait(0.01)
        assert not (await handle.result()).finished
        await handle.interrupt()


async def test_the_server_tells_about_itself(async_client: AsyncClient) -> None:
    assert (await async_client.health()).status == "ok"
    assert (await async_client.info()).owner == "me"
    assert len(await async_client.images()) == 1
    key = await async_client.keys.create("bob")
    assert [listed.id for listed in await async_client.keys.list()] == [key.id]
    assert (await async_client.keys.revoke(key.id)).revoked_at is not None
    assert await async_client.list_sandboxes() == []


async def test_a_sandbox_changes_and_ends(async_client: AsyncClient, app: App) -> None:
    sandbox = await AsyncSandbox.create(client=async_client)
    await sandbox.update(name="new")
    assert (await sandbox.refresh()).name == "new"
    context = sandbox.contexts.default
    assert (await context.complete("pr")).matches == ["print"]
    assert (await context.inspect("print")).found
    assert len(await context.history()) == 1
    assert (await context.variables()).variables == []
    assert (await context.restart()).generation == 2
    await context.interrupt()
    await context.delete()
    await sandbox.delete()
    assert app.sandboxes[sandbox.id].state is SandboxState.DELETED
