"""The Debian mirror this machine uses, as apt knows it. Only Debian's own archives count, not third parties' lists."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SUITE: Final = "bookworm"
"""Debian 12: what the base image is made of."""


def debian_lines(options: str = "") -> list[str]:
    """apt lines for `SUITE` over this machine's mirrors; empty when apt names none (no Debian, no package lists)."""
    uris = _uris()
    main = [uri for uri in uris if not _is_security(uri)][:1]
    security = [uri for uri in uris if _is_security(uri)][:1]
    lines = [f"deb {options}{uri} {suite} main" for uri in main for suite in (SUITE, f"{SUITE}-updates")]
    return lines + [f"deb {options}{uri} {SUITE}-security main" for uri in security]


def _is_security(uri: str) -> bool:
    return uri.rstrip("/").endswith("-security")


def _uris() -> Sequence[str]:
    if shutil.which("apt-get") is None:
        return ()
    query = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    filters = ["Created-By: Packages", "Origin: Debian", "Component: main"]
    answer = subprocess.run([*query, *filters], capture_output=True, text=True, check=False)
    return list(dict.fromkeys(_plain(line) for line in answer.stdout.split()))


def _plain(uri: str) -> str:
    """Cloud images list their mirrors in a file (``mirror+file:/path``), which no build can read: its first line."""
    scheme, _, path = uri.partition(":")
    if scheme != "mirror+file":
        return uri
    listed = Path("/" + path.strip("/")).read_text().split()
    return next((line for line in listed if "://" in line), uri)
