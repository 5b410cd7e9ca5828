"""``bench contexts``: from asking for a new context to the result of its first cell; started as a program, and forked."""

from __future__ import annotations

import time

from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client, Context, Sandbox

COLD_ENV = {"LC_ALL": "C.UTF-8"}
"""Is read when Python starts, so a kernel with it cannot be forked."""

ZYGOTE_S = 60.0


def measure(client: Client, image: str | None, driver: str, code: str, n: int) -> Table:
    """One driver's table. Each context is deleted before the next is made. The ratios are over the one that is started."""
    times = {name: Samples(name) for name in ("create, started", "create, forked", *_totals())}
    with Sandbox.create(image, client=client, driver=driver) as sandbox:
        sandbox.run(code).raise_for_error()  # what the zygote is to have imported
        for _ in range(n):
            _measure_one(sandbox, code, COLD_ENV, times, "started")
        _wait_for_zygote(sandbox)
        for _ in range(n):
            _measure_one(sandbox, code, {}, times, "forked")
    return Table(f"a new context on {driver}, {code!r}", rows_of(list(times.values()), _totals()[0]))


def _totals() -> tuple[str, str]:
    return "to the first result, started", "to the first result, forked"


def _measure_one(sandbox: Sandbox, code: str, env: dict[str, str], times: dict[str, Samples], how: str) -> None:
    began = time.perf_counter()
    context = sandbox.contexts.create(env=env)
    created = time.perf_counter()
    context.run(code).raise_for_error()
    done = time.perf_counter()
    if _is_forked(context) != (how == "forked"):
        raise RuntimeError(f"a kernel was not {how} as it should be")
    context.delete()
    times[f"create, {how}"].add_s(created - began)
    times[f"to the first result, {how}"].add_s(done - began)


def _wait_for_zygote(sandbox: Sandbox) -> None:
    """It is made, and imports what kernels use, after a context was."""
    end = time.monotonic() + ZYGOTE_S
    while time.monotonic() < end:
        context = sandbox.contexts.create()
        forked = _is_forked(context)
        context.delete()
        if forked:
            return
    raise TimeoutError(f"no kernel was forked within {ZYGOTE_S:g} s")


def _is_forked(context: Context) -> bool:
    return next(event.data["by"] == "fork" for event in context.events() if event.type == "kernel_started")
