"""The process: one server from start to TERM."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sys
from typing import Final

from cloche.errors import DriverUnavailable
from cloche_server.assembly import RunningServer, running_server
from cloche_server.data_dir import exclusive
from cloche_server.drivers import open_drivers
from cloche_server.images import ImageStore
from cloche_server.log import set_up_logging
from cloche_server.settings import Settings

_LOG: Final = logging.getLogger("cloche.server")

WANTED_DESCRIPTORS: Final = 65_536


def serve(settings: Settings) -> None:
    """Blocks until TERM or INT. Raises `ClocheError` when it cannot start: the caller prints it."""
    set_up_logging(settings.log_format)
    _raise_descriptor_limit()
    with exclusive(settings.data_dir, settings.run_dir):
        asyncio.run(_serve(settings))


def _raise_descriptor_limit() -> None:
    """Each sandbox takes up to 64 idle connections; the usual soft limit of 1024 would end at the 16th."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, WANTED_DESCRIPTORS)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    drivers = open_drivers(settings.data_dir, settings.run_dir)
    try:
        async with running_server(settings, list(drivers.values()), ImageStore(settings.data_dir)) as server:
            _require_driver(server)
            _announce(server)
            await stop.wait()
            _LOG.info("stopping; sandboxes go on")
    finally:
        for driver in drivers.values():
            driver.close()


def _require_driver(server: RunningServer) -> None:
    """A server that can make no sandbox does not pretend to be one."""
    if server.services.drivers.default_name is None:
        server.services.drivers.choose(None)
        raise DriverUnavailable("no driver works on this machine", hint="run: cloche doctor")


def _announce(server: RunningServer) -> None:
    settings = server.services.settings
    name = server.services.drivers.default_name
    report = next(report for report in server.services.drivers.reports() if report.name == name)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    made = " (made just now)" if server.made_first_key else ""
    for line in (
        f"driver: {report.name} ({report.isolation})",
        *(f"driver {r.name} does not work: {r.why_not}" for r in server.services.drivers.reports() if not r.works),
        f"admin key: {settings.admin_key_path}{made}",
        f"sandboxes found again: {len(server.recovered.adopted)}, lost: {len(server.recovered.failed)}",
        f"listening on http://{host}:{server.port} (documentation at /docs)",
    ):
        print(line, file=sys.stdout, flush=True)
