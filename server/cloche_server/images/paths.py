"""Where images and the builder's caches live. One place, so that the command line and the server agree."""

from __future__ import annotations

import os
from pathlib import Path

from cloche_server import settings


def default_data_dir() -> Path:
    """``CLOCHE_DATA_DIR``, else the server's own default: they must be one."""
    chosen = os.environ.get("CLOCHE_DATA_DIR")
    return Path(chosen) if chosen else settings.default_data_dir()


def default_cache_dir() -> Path:
    """``CLOCHE_CACHE_DIR``, else ``/var/cache/cloche`` for root, else ``~/.cache/cloche``.

    Holds what a build can make again: builder layers and the Debian base. Deleting it costs time only.
    """
    chosen = os.environ.get("CLOCHE_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path("/var/cache/cloche") if os.geteuid() == 0 else Path.home() / ".cache/cloche"


def checkout_root() -> Path:
    """The source tree this package runs from (an editable install): it has ``sandbox_images`` and ``constraints``."""
    return Path(__file__).resolve().parents[3]
