"""Host and Origin checks. Pure.

Host: a page of evil.example that rebinds its own name to 127.0.0.1 reaches every local server, but its requests still
say ``Host: evil.example``. So every request must name a host this server is known by.

Origin: browsers add it to WebSocket upgrades and to state-changing requests. When it is there, it must be ours.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def host_name(host: str) -> str:
    """Without the port, lower case; IPv6 keeps its brackets. A trailing dot stays, and so is no known name."""
    host = host.strip().lower()
    if host.startswith("["):
        address, bracket, _ = host.partition("]")
        return address + bracket
    return host.partition(":")[0]


def known_names(bind_host: str, configured: Collection[str]) -> frozenset[str]:
    """The names a server answers to. A wildcard address names nobody."""
    bound = f"[{bind_host}]" if ":" in bind_host else bind_host
    wildcard = {"0.0.0.0", "[::]"}
    return LOOPBACK_NAMES | ({bound.lower()} - wildcard) | {host_name(name) for name in configured}


def host_allowed(host: str | None, names: Collection[str]) -> bool:
    """False for a missing or doubled header, too (a doubled one arrives with a comma)."""
    if not host or any(c in host for c in ",@/ "):
        return False
    port = host.strip()[len(host_name(host)) :]
    return host_name(host) in names and (port == "" or (port[0] == ":" and port[1:].isdecimal()))


def origin_allowed(origin: str, scheme: str, host: str, configured: Collection[str]) -> bool:
    """Same origin as the request itself, or configured. ``null`` (sandboxed frames, files) never is."""
    origin = origin.strip().lower()
    return origin == f"{scheme}://{host.strip().lower()}" or origin in configured
