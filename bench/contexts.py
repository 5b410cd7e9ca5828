"""``bench contexts``: from asking for a new context to the result of its first cell; started as a program, forked, and with
a kernel that was made ahead."""

from __future__ import annotations

import time
from typing import Any

from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client, Context, Sandbox

COLD_ENV = {"LC_ALL": "C.UTF-8"}
"""Is read when Python starts, so a kernel with it cannot be forked."""

LIMITS = {"open_files": 4096}
"""A kernel with limits is never one that was made ahead."""

REST_S = 1.0
"""Before each context whose kernel is to be made ahead: the one before has taken the last."""

ZYGOTE_S = 60.0

KINDS: dict[str, dict[str, Any]] = {"started": {"env": COLD_ENV}, "forked": {"limits": LIMITS}, "made ahead": {}}


def measure(client: Client, image: str | None, driver: str, code: str, n: int) -> Table:
    """One driver's table. Each context is deleted before the next is made. The ratios are over the one that is started."""
    times = {name: Samples(name) for how in KINDS for name in (_create(how), _total(how))}
    with Sandbox.create(image, client=client, driver=driver) as sandbox:
        sandbox.run(code).raise_for_error()  # what the zygote is to have imported
        for how in KINDS:
            if how == "forked":
                _wait_for_zygote(sandbox)
            for _ in range(n):
                _measure_one(sandbox, code, how, times)
    return Table(f"a new context on {driver}, {code!r}", rows_of(list(times.values()), _total("started")))


def _create(how: str) -> str:
    return f"create, {how}"


def _total(how: str) -> str:
    return f"to the first result, {how}"


def _measure_one(sandbox: Sandbox, code: str, how: str, times: dict[str, Samples]) -> None:
    if how == "made ahead":
        time.sleep(REST_S)
    began = time.perf_counter()
    context = sandbox.contexts.create(**KINDS[how])
    created = time.perf_counter()
    context.run(code).raise_for_error()
    done = time.perf_counter()
    if _how(context) != how:
        raise RuntimeError(f"a kernel was {_how(context)} and not {how}")
    context.delete()
    times[_create(how)].add_s(created - began)
    times[_total(how)].add_s(done - began)


def _wait_for_zygote(sandbox: Sandbox) -> None:
    """It is made, and imports what kernels use, after a context was."""
    end = time.monotonic() + ZYGOTE_S
    while time.monotonic() < end:
        context = sandbox.contexts.create()
        how = _how(context)
        context.delete()
        if how != "started":
            return
    raise TimeoutError(f"no kernel was forked within {ZYGOTE_S:g} s")


def _how(context: Context) -> str:
    data = next(event.data for event in context.events() if event.type == "kernel_started")
    if data["by"] != "fork":
        return "started"
    return "made ahead" if data["ahead"] else "forked"
