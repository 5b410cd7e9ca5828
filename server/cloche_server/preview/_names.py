"""Names of previews: from a Host header to a port of a sandbox, and back. Pure.

``{port}-{sandbox id}.{domain}``: one label, so a wildcard certificate and a wildcard DNS record cover all previews, and
each preview is a web origin of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_LABEL: Final = re.compile(r"([1-9][0-9]{0,4})-([a-z0-9]{20})", re.ASCII)
_PORT: Final = re.compile(r":[0-9]{1,5}", re.ASCII)

MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class PreviewHost:
    """``authority`` is the Host header as it came, in lower case: what the address bar shows."""

    port: int
    sandbox_id: str
    authority: str


def parse_host(host: str, domain: str) -> PreviewHost | None:
    """None for every name that is no preview's: it is then held against the names of the API."""
    host = host.lower()
    name, colon, port = host.partition(":")
    if colon and _PORT.fullmatch(colon + port) is None:
        return None
    label, dot, rest = name.partition(".")
    match = _LABEL.fullmatch(label)
    if match is None or not dot or rest != domain or int(match[1]) > MAX_PORT:
        return None
    return PreviewHost(int(match[1]), match[2], host)


def preview_authority(port: int, sandbox_id: str, domain: str, public_port: int | None) -> str:
    """``public_port`` None: the scheme's own."""
    suffix = "" if public_port is None else f":{public_port}"
    return f"{port}-{sandbox_id}.{domain}{suffix}"
