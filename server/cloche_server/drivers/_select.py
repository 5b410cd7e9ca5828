"""Which drivers there are, and which to use: the strongest that passes its self-test. Never a silent fallback."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from cloche.errors import DriverUnavailable
from cloche.models.info import DriverReport
from cloche_server.drivers._base import SelfTest
from cloche_server.drivers._layout import Layout
from cloche_server.drivers._oci_driver import OciDriver
from cloche_server.drivers._runtimes import Gvisor, Runc, Runtime

STRENGTH: Final = {runtime.name: runtime.strength for runtime in (Gvisor(), Runc())}


def open_drivers(data_dir: Path, run_dir: Path) -> dict[str, OciDriver]:
    """Every driver by name, strongest first; works or not is for `try_drivers` to find out. Touches nothing.

    The environment variables ``CLOCHE_RUNSC`` and ``CLOCHE_RUNC`` name other binaries.
    """
    runtimes: Sequence[Runtime] = (Gvisor(_from_environment("CLOCHE_RUNSC")), Runc(_from_environment("CLOCHE_RUNC")))
    return {runtime.name: OciDriver(runtime, Layout(run_dir, data_dir, runtime.name)) for runtime in runtimes}


def _from_environment(name: str) -> Path | None:
    return Path(os.environ[name]) if os.environ.get(name) else None


async def try_drivers(drivers: Iterable[OciDriver]) -> list[SelfTest]:
    """All self-tests at once, in the order given."""
    return list(await asyncio.gather(*(driver.self_test() for driver in drivers)))


def pick_driver(results: Sequence[SelfTest], wanted: str | None = None) -> str:
    """The name of the driver to use.

    With ``wanted``, that one or `DriverUnavailable`; without, the strongest that works or `DriverUnavailable` with what
    each lacks.
    """
    by_name = {result.driver: result for result in results}
    if wanted is not None:
        return _insist(by_name.get(wanted), wanted)
    working = [result.driver for result in results if result.works]
    if not working:
        lacks = "; ".join(f"{result.driver}: {result.why_not} ({result.how_to_fix})" for result in results)
        raise DriverUnavailable("no driver works on this machine", hint=lacks or "no driver was tested")
    return max(working, key=lambda name: STRENGTH.get(name, 0))


def _insist(result: SelfTest | None, wanted: str) -> str:
    if result is None:
        raise DriverUnavailable(f"there is no driver {wanted!r}", hint=f"known: {', '.join(STRENGTH)}")
    if not result.works:
        details = {"driver": wanted, "why": result.why_not}
        raise DriverUnavailable(
            f"driver {wanted} does not work here: {result.why_not}", hint=result.how_to_fix, details=details
        )
    return wanted


def report(result: SelfTest) -> DriverReport:
    """For ``/v1/info`` and ``cloche doctor``."""
    return DriverReport(
        name=result.driver,
        works=result.works,
        isolation=result.isolation,
        version=result.version,
        capabilities=sorted(result.capabilities),
        why_not=result.why_not,
        how_to_fix=result.how_to_fix,
    )


async def doctor(data_dir: Path, run_dir: Path) -> list[DriverReport]:
    """Every driver, really tried, strongest first."""
    drivers = open_drivers(data_dir, run_dir)
    try:
        return [report(result) for result in await try_drivers(drivers.values())]
    finally:
        for driver in drivers.values():
            driver.close()
