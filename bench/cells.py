"""``bench cells``: the round trip of one cell, Cloche against what it is made of and what it replaces.

Four ways to execute the same code, interleaved in blocks so that whatever else the machine does hits all of them:

- SDK -> server -> guest -> kernel, in a sandbox; beside it what the SDK's own CPU takes of this, and how long a call
  takes that asks the guest but no kernel;
- bare jupyter_client -> kernel in the same sandbox, with Cloche's kernel settings (the baseline) and with stock ones;
- Jupyter Kernel Gateway over WebSocket -> kernel, without a sandbox.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from bench._bare_in_sandbox import SAME_SETTINGS, BareInSandbox
from bench._gateway import Gateway
from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client, Sandbox

BLOCK: Final = 10
BASELINE: Final = "bare jupyter_client"


def measure(client: Client, image: str | None, driver: str, code: str, n: int, gateway: Gateway | None) -> Table:
    """One driver's table."""
    ours, own_cpu = Samples("cloche run()"), Samples("cloche run(), CPU time of the SDK")
    stopped = Samples("cloche, a call that ends at the guest")
    bare, stock, theirs = Samples(BASELINE), Samples("bare, stock kernel settings"), Samples("Jupyter Kernel Gateway")
    with ExitStack() as stack:
        sandbox = stack.enter_context(Sandbox.create(image, client=client, driver=driver))
        clients = [(bare, BareInSandbox(sandbox, code, SAME_SETTINGS)), (stock, BareInSandbox(sandbox, code, ()))]
        default = sandbox.contexts.default
        for block in range(-1, -(-n // BLOCK)):  # block -1 warms up and is not counted
            for _ in range(BLOCK):
                before = time.thread_time()
                _timed(ours, block, lambda: sandbox.run(code).raise_for_error())
                own_cpu.add_s(time.thread_time() - before)
                _timed(stopped, block, default.refresh)
            for samples, one in clients:
                times = one.times_s(BLOCK)
                samples.ms += [seconds * 1000 for seconds in times] if block >= 0 else []
            if gateway is not None:
                for _ in range(BLOCK):
                    _timed(theirs, block, lambda: gateway.round_trip_s(code))
        for _, one in clients:
            one.close()
    return Table(f"{code!r} on {driver}", rows_of([bare, ours, own_cpu, stopped, stock, theirs], BASELINE), BASELINE)


def _timed(samples: Samples, block: int, work: Callable[[], object]) -> None:
    started = time.perf_counter()
    work()
    if block >= 0:
        samples.add_s(time.perf_counter() - started)
