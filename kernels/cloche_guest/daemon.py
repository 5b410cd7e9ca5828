"""The life of the guest: start everything, serve until told to stop, end everything."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from tornado import web
from tornado.netutil import bind_sockets

from cloche_guest.app import make_app, make_server
from cloche_guest.children import Children
from cloche_guest.config import GuestConfig
from cloche_guest.contexts import ContextService
from cloche_guest.files.service import FileService
from cloche_guest.files.watches import WatchService
from cloche_guest.identity import SandboxIdentity
from cloche_guest.memory_guard import start_memory_guard
from cloche_guest.oom_watch import watch_memory_kills
from cloche_guest.ports import PortService
from cloche_guest.processes import Declarations, ProcessService, Services
from cloche_guest.sandbox_events import SandboxEvents
from cloche_guest.sudo import SudoBroker
from cloche_guest.terminals.service import TerminalService
from cloche_guest.uplink import Uplink

log = logging.getLogger(__name__)


async def serve(config: GuestConfig, identity: SandboxIdentity) -> None:
    """Run the guest until SIGTERM or SIGINT."""
    children = Children(collect_orphans=os.getpid() == 1)
    children.watch()
    events = SandboxEvents()
    if config.memory_guard:
        start_memory_guard(events.tell_of_memory_kill)
    oom_watch = asyncio.create_task(watch_memory_kills(events.append), name="out-of-memory watch")
    stop = _stop_signal()
    config.runtime_dir.mkdir(mode=0o711, parents=True, exist_ok=True)  # the kernels' user must be able to pass through
    contexts = ContextService(
        children,
        identity.environment,
        kernel_python=config.kernel_python,
        account=config.account,
        workspace=config.workspace,
        runtime_dir=config.runtime_dir,
        tell=events.append,
    )
    processes = ProcessService(
        children,
        identity.environment,
        account=config.account,
        workspace=config.workspace,
        may_be_root=lambda: identity.sudo,
        tell=events.append,
    )
    services = Services(processes, Declarations(config.state_dir), events.append)
    sudo = SudoBroker(
        config.runtime_dir / "sudo.sock", children, allowed=lambda: identity.sudo, environment=identity.environment
    )
    terminals = TerminalService(
        children,
        identity.environment,
        account=config.account,
        workspace=config.workspace,
        runtime_dir=config.runtime_dir,
        tell=events.append,
    )
    files = FileService(
        children,
        identity.environment,
        account=config.account,
        workspace=config.workspace,
        may_be_root=lambda: identity.sudo,
    )
    watches = WatchService(files)
    ports = PortService(events.append)
    app = make_app(
        contexts,
        terminals,
        config.guest_epoch,
        processes=processes,
        services=services,
        events=events,
        ports=ports,
        files=files,
        watches=watches,
    )
    events.append("sandbox_started", {"guest_epoch": config.guest_epoch})
    try:
        sudo.open()
        services.open()
        ports.start()
        if config.listen is not None:
            await _listen(app, config.listen, stop, ports.reserved)
        else:
            await _dial(Uplink(app, config, identity), stop)
    finally:
        await sudo.close()
        await watches.stop()
        files.stop()
        await ports.stop()
        await services.stop()
        await processes.stop()
        await terminals.stop()
        await contexts.stop()
        oom_watch.cancel()
        events.close()
        children.unwatch()


async def _listen(app: web.Application, address: tuple[str, int], stop: asyncio.Event, reserved: set[int]) -> None:
    server = make_server(app)
    sockets = bind_sockets(address[1], address[0])
    server.add_sockets(sockets)
    reserved.update(made.getsockname()[1] for made in sockets)
    log.warning("serving on %s:%d", *sockets[0].getsockname())
    try:
        await stop.wait()
    finally:
        server.stop()
        await server.close_all_connections()


async def _dial(uplink: Uplink, stop: asyncio.Event) -> None:
    dialling = asyncio.create_task(uplink.run())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((dialling, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (dialling, stopping):
            task.cancel()
        await asyncio.gather(dialling, stopping, return_exceptions=True)
        await uplink.server.close_all_connections()


def _stop_signal() -> asyncio.Event:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
