"""Volumes and usage in the client."""

from __future__ import annotations

import pytest
from protocol_app import App

from cloche import AsyncClient, AsyncSandbox, Client, Conflict, InvalidRequest, NotFound, Sandbox
from cloche.models import VolumeAttachment


def test_volumes_are_made_found_and_deleted(client: Client, app: App) -> None:
    made = client.volumes.create("data", size_mb=64, labels={"a": "b"})
    other = client.volumes.create("other")
    assert app.bodies == [{"name": "data", "size_mb": 64, "labels": {"a": "b"}}, {"name": "other"}]
    assert client.volumes.get("data") == client.volumes.get(made.id) == made
    assert client.volumes.list() == [other, made]
    with pytest.raises(Conflict):
        client.volumes.create("data")
    assert client.volumes.delete("data").id == made.id
    with pytest.raises(NotFound):
        client.volumes.delete("data")


async def test_volumes_can_be_awaited(async_client: AsyncClient) -> None:
    made = await async_client.volumes.create("data")
    async with AsyncSandbox.create(client=async_client, volumes={"/data": "data"}) as sandbox:
        assert (await async_client.volumes.get("data")).attached_to == [sandbox.id]
        assert (await sandbox.usage()).sandbox_id == sandbox.id
        assert [one.sandbox_id for one in await async_client.usage()] == [sandbox.id]
    assert (await async_client.volumes.list()) == [made]
    await async_client.volumes.delete(made.id)


def test_a_sandbox_is_made_with_volumes(client: Client, app: App) -> None:
    client.volumes.create("data")
    app.bodies.clear()
    with Sandbox.create(client=client, volumes={"/data": "data"}) as sandbox:
        assert sandbox.info.volumes == [VolumeAttachment(volume="data", path="/data")]
        with pytest.raises(Conflict) as caught:
            client.volumes.delete("data")
        assert caught.value.details["sandboxes"] == [sandbox.id]
    read_only = VolumeAttachment(volume="data", path="/data", read_only=True)
    with Sandbox.create(client=client, volumes=[read_only]) as sandbox:
        assert sandbox.info.volumes == [read_only]
    with Sandbox.create(client=client, volumes=[{"volume": "data", "path": "/x"}]):
        pass
    with Sandbox.create(client=client):
        pass
    assert [body.get("volumes") for body in app.bodies] == [
        [{"volume": "data", "path": "/data"}],
        [{"volume": "data", "path": "/data", "read_only": True}],
        [{"volume": "data", "path": "/x"}],
        None,
    ]


def test_a_path_that_is_none_is_refused_before_anything_is_sent(client: Client, app: App) -> None:
    with pytest.raises(InvalidRequest, match="path"):
        Sandbox.create(client=client, volumes={"data": "data"})
    assert app.bodies == []


def test_usage_of_one_and_of_all(client: Client) -> None:
    with Sandbox.create(client=client) as one, Sandbox.create(client=client) as two:
        usage = one.usage()
        assert (usage.sandbox_id, usage.processes) == (one.id, 7)
        assert [each.sandbox_id for each in client.usage()] == [two.id, one.id]
        assert [each.sandbox_id for each in client.usage(limit=1)] == [two.id]
