"""What the server tells the guest about the life of the sandbox."""

from __future__ import annotations

import asyncio

from tornado.http1connection import HTTP1Connection

from cloche.errors import Conflict
from cloche.models.guest import EndAll, Identity, Preload, UplinksClose, VariablesAsked
from cloche_guest.activity import ActivityMeter
from cloche_guest.contexts import ContextService
from cloche_guest.http import Handler, NoQuery
from cloche_guest.parts import Parts
from cloche_guest.rebirth import Rebirth
from cloche_guest.sandbox_events import SandboxEvents
from cloche_guest.terminals.service import TerminalService
from cloche_guest.uplink import Uplink


class UplinksCloseHandler(Handler):
    """``/v1/uplinks/close``: answers, and then every connection ends."""

    def initialize(self, uplink: Uplink | None, events: SandboxEvents, terminals: TerminalService) -> None:
        self._uplink = uplink
        self._events = events
        self._terminals = terminals

    async def post(self) -> None:
        self.read_query(NoQuery)
        body = self.read_body(UplinksClose)
        if self._uplink is None:
            raise Conflict("this guest listens on a port; it has no uplinks", details={"kind": "guest", "id": "guest"})
        self._events.append("uplinks_closed", {"reason": body.reason})
        self._terminals.acknowledge_input()
        await asyncio.sleep(0)  # the senders wake up in this turn of the loop, and write
        self.set_status(204)
        connection = self.request.connection
        await self.finish()
        self._uplink.close_all(last=connection.stream if isinstance(connection, HTTP1Connection) else None)


class IdentityHandler(Handler):
    """``/v1/identity``: a sandbox of a pool is claimed."""

    def initialize(self, rebirth: Rebirth) -> None:
        self._rebirth = rebirth

    async def post(self) -> None:
        self.read_query(NoQuery)
        await self._rebirth.be_claimed(self.read_body(Identity))
        self.set_status(204)
        self.finish()


class ActivityHandler(Handler):
    """``/v1/activity``: see there."""

    def initialize(self, activity: ActivityMeter) -> None:
        self._activity = activity

    async def get(self) -> None:
        self.read_query(NoQuery)
        self.answer(await self._activity.measure())


class EndAllHandler(Handler):
    """``/v1/end-all``: answers when nothing is left that was started."""

    def initialize(self, parts: Parts) -> None:
        self._parts = parts

    async def post(self) -> None:
        self.read_query(NoQuery)
        body = self.read_body(EndAll)
        await self._parts.end_all(start_services=body.start_services)
        self.set_status(204)
        self.finish()


class PreloadHandler(Handler):
    """``/v1/preload``: answers when new contexts begin with these modules imported, or cannot."""

    def initialize(self, contexts: ContextService) -> None:
        self._contexts = contexts

    async def post(self) -> None:
        self.read_query(NoQuery)
        await self._contexts.preload(self.read_body(Preload).modules)
        self.set_status(204)
        self.finish()


class VariablesSummaryHandler(Handler):
    """``/v1/variables/summary``: variables with digests, for comparing two kernels."""

    def initialize(self, contexts: ContextService) -> None:
        self._contexts = contexts

    async def post(self) -> None:
        self.read_query(NoQuery)
        context = self._contexts.get(self.read_body(VariablesAsked).context_id)
        self.answer(await self._contexts.variables_summary(context))
