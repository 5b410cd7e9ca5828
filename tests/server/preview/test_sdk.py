"""Ports and previews through the SDK and the command line, on a real server with a fake guest."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cloche import AsyncClient, AsyncSandbox, Client, InvalidRequest, NotFound, Sandbox

from ..conftest import Harness
from ..fake_guest import http_answer
from .visitor import Stage, plain, saying

PORTS = {"items": [{"port": 8000, "addresses": ["127.0.0.1"], "process": {"pid": 7, "command": "app\x1b[2J"}}]}


async def ports(method: str, target: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
    assert (method, target, body) == ("GET", "/v1/ports", b"")
    del headers
    writer.write(http_answer(200, PORTS))


async def with_path(stage: Stage, url: str) -> int:
    assert url.startswith(f"http://{stage.host}/")
    return (await stage.get("/" + url.partition(f"{stage.host}/")[2])).status


async def test_a_preview_is_made_used_revoked_and_deleted(cloche: Harness) -> None:
    key = cloche.settings.admin_key_path.read_text().strip()
    async with AsyncClient(cloche.base, key) as client:
        sandbox = await AsyncSandbox.create(client=client)
        stage = Stage(cloche, sandbox.id)
        await stage.use(saying(plain()))
        cloche.driver.guests[sandbox.id].raw = ports
        assert [port.port for port in await sandbox.ports()] == [8000]
        preview = await sandbox.preview(8000)
        assert not preview.public
        assert await with_path(stage, preview.url) == 404
        first = preview.token_url
        assert await with_path(stage, first) == 200
        second = (await preview.new_token(5)).url
        assert preview.token_url == second != first
        await preview.revoke()
        assert preview.token_url == preview.url
        assert [await with_path(stage, url) for url in (first, second)] == [404, 404]
        public = await sandbox.preview(8000, public=True)
        assert public.info.warning
        assert public.token_url == public.url
        assert await with_path(stage, public.url) == 200
        assert not (await sandbox.preview(8000)).public
        assert [each.port for each in await sandbox.previews()] == [8000]
        await preview.delete()
        with pytest.raises(NotFound):
            await preview.refresh()
        with pytest.raises(InvalidRequest):
            await sandbox.preview(65_536)


async def test_the_blocking_one_does_the_same(cloche: Harness) -> None:
    key = cloche.settings.admin_key_path.read_text().strip()

    def use() -> tuple[str, str]:
        with Client(cloche.base, key) as client, Sandbox.create(client=client) as sandbox:
            made = sandbox.preview(8000, ttl_s=60)
            assert made.info.expires_at is not None
            assert sandbox.previews()[0].info == made.refresh()
            return made.url, made.token_url

    url, token_url = await asyncio.to_thread(use)
    assert token_url.startswith(f"{url}?cloche_token=clt_")


async def test_the_command_line(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox(name="box")
    cloche.driver.guests[sandbox_id].raw = ports

    async def run(*words: str) -> tuple[str, str]:
        command = [str(Path(sys.executable).with_name("cloche")), "--url", cloche.base, *words]
        key = cloche.settings.admin_key_path.read_text().strip()
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, env={"CLOCHE_API_KEY": key}, check=True
        )
        return done.stdout, done.stderr

    listed, _ = await run("ports", "box")
    assert "8000  127.0.0.1  7" in listed
    assert "\x1b" not in listed
    link, said = await run("preview", "box", "8000")
    assert f"http://8000-{sandbox_id}.localhost" in link
    assert "cloche_token=" in link
    assert said == ""
    link, said = await run("preview", "box", "8000", "--public", "--json")
    assert json.loads(link)["visibility"] == "public"
    assert "anybody" in said
    _, said = await run("preview", "box", "8000", "--revoke")
    assert "ended" in said
