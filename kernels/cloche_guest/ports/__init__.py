"""Ports of the sandbox: what listens, who holds it, and the way in from the server."""

from cloche_guest.ports._service import PortService
from cloche_guest.ports._tunnel import connect_app

__all__ = ["PortService", "connect_app"]
