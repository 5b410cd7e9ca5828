"""What may happen to a sandbox, and when it happens by itself. Pure: no clock, no files, no event loop."""

from cloche_server.lifecycle.machine import LEGAL, TRANSIENT, Event, next_state
from cloche_server.lifecycle.resolution import Found, resolve

__all__ = ["LEGAL", "TRANSIENT", "Event", "Found", "next_state", "resolve"]
