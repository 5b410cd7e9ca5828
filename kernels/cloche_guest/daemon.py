"""The life of the guest: start everything, serve until told to stop, end everything."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from cloche_guest.app import GuestServer, make_app, make_server
from cloche_guest.children import Children
from cloche_guest.config import GuestConfig
from cloche_guest.contexts import ContextService
from cloche_guest.identity import SandboxIdentity

log = logging.getLogger(__name__)


async def serve(config: GuestConfig, identity: SandboxIdentity) -> None:
    """Run the guest until SIGTERM or SIGINT."""
    children = Children(collect_orphans=os.getpid() == 1)
    children.watch()
    stop = _stop_signal()
    config.runtime_dir.mkdir(mode=0o711, parents=True, exist_ok=True)  # the kernels' user must be able to pass through
    contexts = ContextService(
        children,
        identity.environment,
        kernel_python=config.kernel_python,
        account=config.account,
        workspace=config.workspace,
        runtime_dir=config.runtime_dir,
    )
    server = make_server(make_app(contexts, config.guest_epoch))
    try:
        await _serve_until(stop, server, config, identity)
    finally:
        server.stop()
        await contexts.stop()
        await server.close_all_connections()
        children.unwatch()


async def _serve_until(
    stop: asyncio.Event, server: GuestServer, config: GuestConfig, identity: SandboxIdentity
) -> None:
    if config.listen is not None:
        host, port = config.listen
        server.listen(port, host)
        log.warning("serving on %s:%s", host, port)
        await stop.wait()


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
