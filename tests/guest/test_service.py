"""The service and its processes in this process: for what needs a smaller bound or an unusual start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from guest_process import guest_environ, text
from uplink_hub import Hub, call

from cloche.errors import LimitReached
from cloche.models import ContextCreate
from cloche_guest.children import Children, ExitStatus
from cloche_guest.contexts import ContextService, _service


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[ContextService]:
    children = Children(collect_orphans=False)
    children.watch()
    made = ContextService(
        children,
        lambda: guest_environ(tmp_path, tmp_path),
        kernel_python=sys.executable,
        account=None,
        workspace=str(tmp_path),
        runtime_dir=tmp_path,
        clock=time.monotonic,
    )
    yield made
    await made.stop()
    children.unwatch()


async def test_contexts_are_limited(service: ContextService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_service, "MAX_CONTEXTS", 1)
    body = ContextCreate(cwd=str(tmp_path))
    first = await service.create(body)
    with pytest.raises(LimitReached) as error:
        await service.create(body)
    assert error.value.details == {"limit": 1}
    await service.delete(first.id)
    await service.create(body)


async def test_children_have_their_status_and_strangers_keep_theirs() -> None:
    """One owner for each child: a status that two wait for is lost for one of them."""
    stranger = subprocess.Popen(["sh", "-c", "exit 5"])
    children = Children(collect_orphans=False)
    children.watch()
    environ = {"PATH": os.environ["PATH"]}
    spawn = {"cwd": "/", "env": environ, "account": None, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    seven = children.spawn(["sh", "-c", "exit 7"], **spawn)  # type: ignore[arg-type]
    killed = children.spawn(["sh", "-c", "kill -TERM $$"], **spawn)  # type: ignore[arg-type]
    async with asyncio.timeout(60):
        assert await seven.exited == ExitStatus(code=7)
        assert await killed.exited == ExitStatus(signal=15)
    seven.signal_group(9)  # it has ended: nothing happens, and no stranger is hit
    children.unwatch()
    assert stranger.wait() == 5


async def test_as_pid_1_the_guest_collects_orphans_and_still_knows_how_kernels_end(tmp_path: Path) -> None:
    hub = Hub(tmp_path / "up.sock")
    await hub.open()
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", "cloche_guest"]
    environ = guest_environ(tmp_path, tmp_path) | {"CLOCHE_GUEST_UPLINK": str(hub.path)}
    process = await asyncio.create_subprocess_exec(*command, env=environ)
    orphan = """
import os, time
if not os.fork():
    if not os.fork(): os._exit(0)
    os._exit(0)
os.wait()
def state(pid):
    try: return open(f'/proc/{pid}/stat').read().rpartition(') ')[2][0]
    except OSError: return 'gone'
def zombies(): return [p for p in os.listdir('/proc') if p.isdigit() and state(p) == 'Z']
while (left := zombies()): time.sleep(0.01)
print(os.getppid(), left)
"""
    try:
        async with asyncio.timeout(60):
            connection = await hub.take()
            runs = "/v1/contexts/default/runs"
            assert text(await call(connection, "POST", runs, {"code": orphan})) == "1 []\n"
            failed = await call(connection, "POST", runs, {"code": "import os; os._exit(9)"})
            assert (failed["failure"]["reason"], failed["failure"]["exit_code"]) == ("exit", 9)
            assert (await call(connection, "POST", runs, {"code": "1"}))["status"] == "ok"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        os.kill(int(children), signal.SIGTERM)  # unshare itself ignores it
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await hub.close()
