"""Uplinks: connections the guests dial, used in reverse by the server."""

from cloche_server.uplink._hello import Expected, check_hello
from cloche_server.uplink._hub import Uplink, UplinkHub
from cloche_server.uplink._pool import PoolClosed, WirePool
from cloche_server.uplink._wire import Traffic, Wire, WireClosed

__all__ = ["Expected", "PoolClosed", "Traffic", "Uplink", "UplinkHub", "Wire", "WireClosed", "WirePool", "check_hello"]
