"""The ten findings of jupyter.md, as far as they concern contexts (the others concern servers and other kernels).

5 (an awaited sleep is interrupted) is in test_control.py, with all other kinds of code.
"""

from __future__ import annotations

import asyncio
import math
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import zmq
from guest_process import Guest, guest_environ, running_guest, text
from uplink_hub import Hub, call

from cloche.models import ContextLimits
from cloche_guest.children import Children
from cloche_guest.contexts._channels import Channel, Channels
from cloche_guest.contexts._kernel import Kernel, start_kernel
from cloche_guest.contexts._kernel_process import KernelSpec
from cloche_guest.contexts._launcher import Launcher
from cloche_guest.contexts._wire import Message

IMPORT = "import ipykernel.kernelapp"


def test_finding_3_a_kernel_is_ready_when_it_answers_and_no_fixed_time_later(guest: Guest) -> None:
    """jupyter_client's own start waits for a reconnect (100 ms and jitter) and drains iopub for 200 ms."""
    context = guest.create()
    started = context.context_until("context_state", state="idle")
    context.delete()
    assert started["data"]["generation"] == 1
    plain, ours = math.inf, math.inf
    for _ in range(10):  # usually two or three will do: the best of each counts, and others may be busy now and then
        plain = min(plain, _seconds(lambda: subprocess.run([sys.executable, "-c", IMPORT], check=True)))
        ours = min(ours, _seconds(lambda: guest.create().delete()))
        # Start, connect, ask and end, beside importing alone: measured 1.4 to 2 times; with the two waits it would be over 3.
        if ours < 3 * plain + 0.1:
            return
    pytest.fail(f"{ours:.3f} s, where the import alone takes {plain:.3f} s")


def test_finding_4_a_stalled_reader_loses_nothing(lone_guest: Guest) -> None:
    """5,000 displays to a reader that stands still: 3,002 of them and the idle status were lost. Ours waits instead."""
    context = lone_guest.create()
    code = "print('go')\nfor i in range(5000): display(i, raw=False)\nprint('end')"
    run_id = context.submit(code)
    context.until(run_id, "stdout", text="go\n")
    lone_guest.process.send_signal(signal.SIGSTOP)
    time.sleep(0.5)  # the stall itself, not a wait for something
    lone_guest.process.send_signal(signal.SIGCONT)
    run = context.wait(run_id)
    shown = [output["data"]["text/plain"] for output in run["outputs"] if output["type"] == "display"]
    assert shown == [str(number) for number in range(5000)]
    assert text(run) == "go\nend\n"


@pytest.fixture
def lone_guest() -> Any:
    with running_guest() as guest:
        yield guest


class _Kernel:
    """A kernel of ours with channels of the test's own, for what the API cannot show."""

    def __init__(self, tmp_path: Path) -> None:
        self.messages: list[tuple[Channel, Message]] = []
        self.spec = KernelSpec(str(tmp_path), ContextLimits(), None, tmp_path, "ctx-test")
        self.children = Children(collect_orphans=False)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    async def __aenter__(self) -> _Kernel:
        self.children.watch()
        env = guest_environ(self.spec.runtime_dir, self.spec.runtime_dir)
        self.launcher = Launcher(self.children, lambda: env, sys.executable, None)
        self.kernel: Kernel | None = None
        try:
            self.kernel = await start_kernel(
                self.spec,
                self.launcher.launch,
                env,
                1,
                context=self.context,
                on_message=lambda *m: self.messages.append(m),
            )
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.kernel is not None:
            await self.kernel.end()
        await self.launcher.stop()
        self.children.unwatch()
        self.context.destroy(linger=0)

    def ask(self, kind: str, content: dict[str, Any]) -> str:
        assert self.kernel is not None
        return self.kernel.channels.send("shell", kind, content)

    async def until(self, kind: str, parent_id: str) -> Message:
        async with asyncio.timeout(60):
            while True:
                for _, message in self.messages:
                    if message.kind == kind and message.parent_id == parent_id:
                        return message
                await asyncio.sleep(0.005)


async def test_finding_6_a_second_subscriber_knows_when_it_is_subscribed(tmp_path: Path) -> None:
    """iopub_welcome reaches only the first subscriber of a topic; a second one on '' got none and waited for ever."""
    async with _Kernel(tmp_path) as ours:
        seen: list[Message] = []
        assert ours.kernel is not None
        process = ours.kernel.process
        second = Channels(ours.context, process.base, process.key, lambda _, message: seen.append(message))
        async with asyncio.timeout(60):
            await second.subscribe()
        request = ours.ask("execute_request", {"code": "1", "silent": False})
        await ours.until("execute_reply", request)
        async with asyncio.timeout(60):
            while not any(message.kind == "execute_result" for message in seen):
                await asyncio.sleep(0.005)
        second.close()


async def test_the_wedge_a_request_sent_while_replies_go_out_is_not_stranded(tmp_path: Path) -> None:
    """ipykernel PR#1529: a shell request arrived while the kernel replied, and was never read. Also our own side: a ZMQ
    descriptor is edge-triggered and a send may eat the edge."""
    async with _Kernel(tmp_path) as ours:
        for _ in range(10):
            requests = [ours.ask("kernel_info_request", {}) for _ in range(20)]
            for request in requests:
                await ours.until("kernel_info_reply", request)
            ours.messages.clear()


@pytest.mark.parametrize("lo", ["up", "down"])
async def test_finding_10_forked_children_can_print_without_a_network(tmp_path: Path, lo: str) -> None:
    """With lo down, a print of a forked child hung the cell: stock ipykernel sends it over tcp to 127.0.0.1."""
    hub = Hub(tmp_path / "up.sock")
    await hub.open()
    command = ["unshare", "-n", "sh", "-c", ("ip link set lo up; " if lo == "up" else "") + 'exec "$0" -m cloche_guest']
    environ = guest_environ(tmp_path, tmp_path) | {"CLOCHE_GUEST_UPLINK": str(hub.path)}
    process = await asyncio.create_subprocess_exec(*command, sys.executable, env=environ)
    code = "import os\nif not os.fork(): print('child')\nelse:\n  os.wait(); print('parent')"
    try:
        async with asyncio.timeout(60):
            run = await call(await hub.take(), "POST", "/v1/contexts/default/runs", {"code": code})
    finally:
        process.terminate()
        await process.wait()
        await hub.close()
    assert text(run) == "child\nparent\n"
    assert run["duration_s"] < 30


def test_a_cell_is_about_as_fast_as_with_bare_jupyter_client(guest: Guest) -> None:
    """Measured on an idle machine: 3.3 to 4 ms through the guest's HTTP, 4 to 5 ms with bare jupyter_client."""
    context = guest.create()
    context.ok("1")
    ours = math.inf
    for _ in range(10):  # once is enough: others may be busy now and then
        ours = min(ours, statistics.median(_seconds(lambda: context.ok("1")) for _ in range(20)))
        if ours < 0.1:  # loose on purpose: bench/ compares properly, this only catches a wait that should not be there
            break
    context.delete()
    assert ours < 0.1


def _seconds(what: Any) -> float:
    start = time.perf_counter()
    what()
    return time.perf_counter() - start
