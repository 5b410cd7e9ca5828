"""Routes of ports."""

from __future__ import annotations

import re
import socket
from typing import Final

from cloche.errors import InvalidRequest, NotFound, PortClosed
from cloche.models import ListeningPort, Page
from cloche_guest.http import Handler, NoQuery
from cloche_guest.ports import PortService, connect_app

PROTOCOL: Final = "cloche-tcp"
_SWITCH: Final = f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {PROTOCOL}\r\n\r\n".encode()


class PortHandler(Handler):
    """Base of all of them."""

    def initialize(self, ports: PortService) -> None:
        self.ports = ports


class PortsHandler(PortHandler):
    """``/v1/ports``"""

    async def get(self) -> None:
        self.read_query(NoQuery)
        self.answer(Page[ListeningPort](items=await self.ports.list()))


class ConnectHandler(PortHandler):
    """``/v1/ports/{port}/connect``: with ``Upgrade: cloche-tcp`` the connection becomes one to that port."""

    async def post(self, text: str) -> None:
        self.read_query(NoQuery)
        port = _port(text)
        if self.request.headers.get("Upgrade", "").lower() != PROTOCOL:
            raise InvalidRequest(f"this path only answers to Upgrade: {PROTOCOL}")
        if port in self.ports.reserved:
            raise PortClosed(f"nothing listens on port {port} of the sandbox", details={"port": port})
        with self.ports.count_tunnel():
            app = await connect_app(port)
            stream = self.detach()
            outer = socket.socket(fileno=_duplicate(stream.socket))
            stream.close()
            await self.ports.carry(outer, app, _SWITCH)


def _duplicate(taken: socket.socket) -> int:
    """Tornado's stream closes its own descriptor; asyncio goes on with this one."""
    copy = taken.dup()
    copy.setblocking(False)
    return copy.detach()


def _port(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text) or int(text) > 65_535:
        raise NotFound(f"there is no port {text[:32]}", details={"kind": "port", "id": text[:32]})
    return int(text)
