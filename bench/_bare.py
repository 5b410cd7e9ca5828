"""Bare jupyter_client, as a program of its own inside a sandbox: no Cloche on the way.

Run by the guest's Python (it has jupyter_client), it starts the ipykernel of the user's Python over ipc, and for each
line ``N`` on standard input executes the code N times and prints the times in seconds as a JSON list. A round trip
ends when both the reply and the kernel's `idle` have arrived. Arguments: the kernel's Python, the code, options for
ipykernel.
"""

import asyncio
import json
import os
import sys
import tempfile
import time

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager


async def main() -> None:
    python, code, *options = sys.argv[1:]
    manager = AsyncKernelManager(transport="ipc", ip=os.path.join(tempfile.mkdtemp(), "k"))
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv = [python, "-m", "ipykernel_launcher", "-f", "{connection_file}", *options]
    await manager.start_kernel()
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=60)
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        print(json.dumps([await round_trip(client, code) for _ in range(int(line))]), flush=True)
    client.stop_channels()
    await manager.shutdown_kernel(now=True)


async def round_trip(client: AsyncKernelClient, code: str) -> float:
    started = time.perf_counter()
    request = client.execute(code)
    await asyncio.gather(replied(client, request), idle(client, request))
    return time.perf_counter() - started


async def replied(client: AsyncKernelClient, request: str) -> None:
    while (await client.get_shell_msg(timeout=30))["parent_header"].get("msg_id") != request:
        pass


async def idle(client: AsyncKernelClient, request: str) -> None:
    while True:
        message = await client.get_iopub_msg(timeout=30)
        if message["parent_header"].get("msg_id") != request or message["msg_type"] != "status":
            continue
        if message["content"]["execution_state"] == "idle":
            return


asyncio.run(main())
