"""Comparing sandboxes and snapshots, by what fake guests say."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from .conftest import Harness
from .fake_guest import echo, http_answer
from .saved import code_of, snapshot


def comparing(files: dict[str, str], variables: list[dict[str, Any]]) -> Any:
    """A guest with these files (path -> SHA-256, or what a word is) and variables."""

    async def raw(method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        if target.startswith("/v1/files/hashes"):
            lines = "".join(json.dumps([path, word]) + "\n" for path, word in files.items())
            writer.write(http_answer(200, lines.encode(), "application/x-ndjson"))
        elif target == "/v1/variables/summary":
            writer.write(http_answer(200, {"variables": variables, "truncated": False}))
        elif target == "/v1/contexts":
            writer.write(http_answer(200, {"items": [CONTEXT], "next_page": None}))
        else:
            await echo(method, target, headers, body, writer)

    return raw


CONTEXT = {
    **{"id": "default", "name": None, "language": "python", "cwd": "/workspace", "env": [], "limits": {}},
    **{"restart_policy": "on_death", "interrupt_grace_s": 5, "state": "idle", "generation": 1, "execution_count": 0},
    **{"queue": [], "created_at": "2026-01-01T00:00:00Z", "last_activity_at": "2026-01-01T00:00:00Z", "failure": None},
}


async def test_two_sandboxes_are_compared_by_what_their_guests_say(cloche: Harness) -> None:
    before, after = await cloche.sandbox(), await cloche.sandbox()
    value = {"name": "x", "type": "int", "summary": "1", "digest": "d"}
    cloche.driver.guests[before].raw = comparing({"a": "directory", "b": "fifo"}, [value])
    cloche.driver.guests[after].raw = comparing({"a": "directory"}, [{**value, "summary": "2", "digest": "e"}])
    response = await cloche.client.post("/v1/compare", json={"before": before, "after": after})
    assert response.status_code == 200, response.text
    found = response.json()
    assert [(file["path"], file["change"]) for file in found["files"]] == [("b", "removed")]
    assert [(one["name"], one["before"]["summary"], one["after"]["summary"]) for one in found["variables"]] == [
        ("x", "1", "2")
    ]


@pytest.mark.parametrize("line", ['["a"]', "{}", "nonsense", '["a\\u0000", "x"]', '[1, "x"]', '["\\ud800", "x"]'])
async def test_a_guest_that_lists_nonsense_is_found_out(cloche: Harness, line: str) -> None:
    before, after = await cloche.sandbox(), await cloche.sandbox()

    async def raw(method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        if target.startswith("/v1/files/hashes"):
            writer.write(http_answer(200, line.encode(), "application/x-ndjson"))
        else:
            await echo(method, target, headers, body, writer)

    for sandbox_id in (before, after):
        cloche.driver.guests[sandbox_id].raw = raw
    response = await cloche.client.post("/v1/compare", json={"before": before, "after": after})
    assert (response.status_code, code_of(response)) == (502, "guest_fault")


async def test_a_snapshot_is_compared_out_of_sight(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    made = await snapshot(cloche, sandbox_id)
    cloche.driver.raw = comparing({}, [])
    cloche.driver.guests[sandbox_id].raw = comparing({}, [])
    response = await cloche.client.post("/v1/compare", json={"before": made.id, "after": sandbox_id})
    assert response.json() == {"files": [], "variables": [], "truncated": False}
    assert list(cloche.driver.specs) == [sandbox_id]
    assert [item["id"] for item in (await cloche.client.get("/v1/sandboxes")).json()["items"]] == [sandbox_id]
