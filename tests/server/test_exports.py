"""Snapshots as files, out and in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cloche.models import Snapshot

from .conftest import Harness
from .fake_driver import CHECKPOINT_FILE
from .saved import code_of, exported, listed, on_disk, snapshot, until


async def pieces(data: bytes, step: int = 700) -> AsyncIterator[bytes]:
    for start in range(0, len(data), step):
        yield data[start : start + step]


async def test_an_archive_comes_back_as_a_snapshot(cloche: Harness) -> None:
    source = await cloche.sandbox(env={"A": "1"})
    made = await snapshot(cloche, source, name="out")
    archive = await exported(cloche.client, "out")
    response = await cloche.client.post("/v1/snapshots/import?name=in", content=pieces(archive))
    assert response.status_code == 201, response.text
    back = Snapshot.model_validate_json(response.content)
    assert (back.name, back.state, back.digest, back.sandbox_id, back.memory) == (
        "in",
        "ready",
        made.digest,
        None,
        True,
    )
    child = await cloche.client.post("/v1/sandboxes", json={"snapshot": "in"})
    assert child.json()["env"] == ["A"]


async def test_members_import_what_this_server_wrote_and_nothing_else(cloche: Harness) -> None:
    made = await snapshot(cloche, await cloche.sandbox())
    archive = await exported(cloche.client, made.id)
    changed = archive.replace(b'"memory_mb":2048', b'"memory_mb":4096', 1)
    assert changed != archive
    async with cloche.client_of("ann") as ann:
        good = await ann.post("/v1/snapshots/import", content=archive)
        assert (good.status_code, good.json()["owner"]) == (201, "ann")
        response = await ann.post("/v1/snapshots/import", content=changed)
        assert (response.status_code, code_of(response)) == (403, "forbidden")
    assert (await cloche.client.post("/v1/snapshots/import", content=changed)).status_code == 201
    await until(lambda: len(on_disk(cloche)) == 3)


async def test_imports_that_are_not_what_they_say_leave_nothing(cloche: Harness) -> None:
    made = await snapshot(cloche, await cloche.sandbox(), name="n")
    archive = await exported(cloche.client, made.id)
    content = (cloche.settings.data_dir / "snapshots" / made.id / CHECKPOINT_FILE).read_bytes()
    assert archive.count(content) == 1
    wrong = archive.replace(content, content[:-1] + b"#")
    unknown = archive.replace(b"sha256:" + b"0" * 64, b"sha256:" + b"9" * 64)
    url = "/v1/snapshots/import"
    for body, code in (
        (wrong, "snapshot_broken"),
        (unknown, "not_found"),
        (b"x" * 2048, "invalid_request"),
        (b"", "invalid_request"),
    ):
        response = await cloche.client.post(url, content=body)
        assert code_of(response) == code, response.text
    assert code_of(await cloche.client.post(f"{url}?name=n", content=archive)) == "conflict"
    assert (await cloche.client.post(f"{url}?name=m", content=archive)).status_code == 201
    await until(lambda: len(on_disk(cloche)) == 2)


async def test_a_client_that_goes_away_in_the_middle_of_an_import_leaves_nothing(cloche: Harness) -> None:
    made = await snapshot(cloche, await cloche.sandbox())
    archive = await exported(cloche.client, made.id)

    async def half() -> AsyncIterator[bytes]:
        yield archive[: len(archive) // 2]
        await until(lambda: len(on_disk(cloche)) == 2)
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await cloche.client.post("/v1/snapshots/import", content=half())
    await until(lambda: on_disk(cloche) == [made.id])
    assert await listed(cloche.client) == [made.id]
