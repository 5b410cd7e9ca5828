"""The life of the guest: start everything, serve until told to stop, end everything."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

from tornado import web
from tornado.netutil import bind_sockets

from cloche_guest.app import make_app
from cloche_guest.config import GuestConfig
from cloche_guest.identity import SandboxIdentity
from cloche_guest.parts import Parts, make_children, make_parts, start_watching_memory
from cloche_guest.sandbox_events import SandboxEvents
from cloche_guest.server import make_server

log = logging.getLogger(__name__)


async def serve(config: GuestConfig, identity: SandboxIdentity) -> None:
    """Run the guest until SIGTERM or SIGINT."""
    stop = _stop_signal()
    config.runtime_dir.mkdir(mode=0o711, parents=True, exist_ok=True)  # the kernels' user must be able to pass through
    children = make_children()
    children.watch()
    events = SandboxEvents()
    memory = start_watching_memory(config, events)
    parts = make_parts(config, identity, children, events)
    try:
        parts.open()
        await _until(stop, _serve(parts, config))
    finally:
        await parts.close()
        if memory is not None:
            memory.cancel()
        events.close()
        children.unwatch()


async def _serve(parts: Parts, config: GuestConfig) -> None:
    app = make_app(parts)
    if parts.uplink is not None:
        await parts.uplink.run(app)
    else:
        assert config.listen is not None
        await _listen(app, config.listen, parts.ports.reserved)


async def _listen(app: web.Application, address: tuple[str, int], reserved: set[int]) -> None:
    """Until cancelled."""
    server = make_server(app)
    sockets = bind_sockets(address[1], address[0])
    server.add_sockets(sockets)
    reserved.update(made.getsockname()[1] for made in sockets)
    log.warning("serving on %s:%d", *sockets[0].getsockname())
    try:
        await asyncio.Event().wait()
    finally:
        server.stop()
        await server.close_all_connections()


async def _until(stop: asyncio.Event, serving: Coroutine[Any, Any, None]) -> None:
    """Cancels `serving` when told to stop; what ends it before is raised."""
    tasks = (asyncio.create_task(serving), asyncio.create_task(stop.wait()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    if isinstance(ends[0], Exception):
        raise ends[0]


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
