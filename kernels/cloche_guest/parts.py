"""The parts of a guest, made and put together, opened and closed in order. What each does is in its own module."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cloche_guest.activity import ActivityMeter
from cloche_guest.children import Children, be_reaper
from cloche_guest.clock import LifeClock
from cloche_guest.config import GuestConfig
from cloche_guest.contexts import ContextService
from cloche_guest.files.service import FileService
from cloche_guest.files.watches import WatchService
from cloche_guest.identity import SandboxIdentity
from cloche_guest.memory_guard import start_memory_guard
from cloche_guest.oom_watch import watch_memory_kills
from cloche_guest.ports import PortService
from cloche_guest.processes import Declarations, ProcessService, Services
from cloche_guest.rebirth import HasJournals, Rebirth
from cloche_guest.sandbox_events import SandboxEvents
from cloche_guest.sudo import SudoBroker
from cloche_guest.terminals.service import TerminalService
from cloche_guest.uplink import Uplink
from cloche_guest.workers import worker_sources


@dataclass(frozen=True)
class Parts:
    """`uplink` is None in a guest that listens."""

    identity: SandboxIdentity
    clock: LifeClock
    children: Children
    events: SandboxEvents
    contexts: ContextService
    processes: ProcessService
    services: Services
    sudo: SudoBroker
    terminals: TerminalService
    files: FileService
    watches: WatchService
    ports: PortService
    activity: ActivityMeter
    rebirth: Rebirth
    uplink: Uplink | None

    def open(self) -> None:
        """Everything that works without being asked."""
        self.events.append("sandbox_started", {"guest_epoch": self.identity.guest_epoch})
        self.sudo.open()
        self.services.open()
        self.ports.start()

    async def end_all(self, *, start_services: bool) -> None:
        """End whatever was started, in at most some ten seconds; the guest goes on."""
        await self.services.stop()
        await asyncio.gather(self.processes.stop(), self.terminals.end_all(), self.contexts.end_all())
        if start_services:
            self.services.open()

    async def close(self) -> None:
        """End everything, what others depend on last."""
        await self.sudo.close()
        await self.watches.stop()
        self.files.stop()
        await self.ports.stop()
        await self.services.stop()
        await self.processes.stop()
        await self.terminals.stop()
        await self.contexts.stop()
        self.clock.stop()


def make_parts(config: GuestConfig, identity: SandboxIdentity, children: Children, events: SandboxEvents) -> Parts:
    """Nothing is open yet."""
    account, workspace, environment = config.account, config.workspace, identity.environment

    clock = LifeClock()

    def may_be_root() -> bool:
        return identity.sudo

    contexts = ContextService(
        children,
        environment,
        kernel_python=config.kernel_python,
        account=account,
        workspace=workspace,
        runtime_dir=config.runtime_dir,
        clock=clock,
        tell=events.append,
    )
    processes = ProcessService(
        children,
        environment,
        account=account,
        workspace=workspace,
        may_be_root=may_be_root,
        clock=clock,
        tell=events.append,
    )
    terminals = TerminalService(
        children,
        environment,
        account=account,
        workspace=workspace,
        runtime_dir=config.runtime_dir,
        clock=clock,
        tell=events.append,
    )
    files = FileService(children, environment, account=account, workspace=workspace, may_be_root=may_be_root)
    watches = WatchService(files, clock)
    ports = PortService(events.append)
    activity = ActivityMeter(clock, worker_sources(contexts, processes, terminals))
    journals: list[HasJournals] = [events, contexts, processes, terminals, watches]
    rebirth = Rebirth(identity, contexts, journals, activity.touch, events.append)
    return Parts(
        identity=identity,
        clock=clock,
        children=children,
        events=events,
        contexts=contexts,
        processes=processes,
        services=Services(processes, Declarations(config.state_dir), events.append),
        sudo=SudoBroker(config.runtime_dir / "sudo.sock", children, allowed=may_be_root, environment=environment),
        terminals=terminals,
        files=files,
        watches=watches,
        ports=ports,
        activity=activity,
        rebirth=rebirth,
        uplink=Uplink(config, identity, rebirth, ports.close_tunnels) if config.listen is None else None,
    )


def make_children() -> Children:
    """For a process that has no other children: see there."""
    return Children(collect_orphans=be_reaper())


def start_watching_memory(config: GuestConfig, events: SandboxEvents) -> asyncio.Task[None] | None:
    """Tell of processes that are killed for want of memory: by the guard, where there is one, else by the host."""
    if config.memory_guard:
        start_memory_guard(events.tell_of_memory_kill)
        return None
    return asyncio.create_task(watch_memory_kills(events.append), name="out-of-memory watch")
