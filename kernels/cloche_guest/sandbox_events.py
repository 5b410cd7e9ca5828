"""The journal of the sandbox: what happened in it, for people and programs that watch it as a whole.

Whoever makes something happen says so with `append`. It keeps the newest few MiB; every event is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from cloche.journal import Journal
from cloche.journal_feed import JournalFeed
from cloche_guest.identity import new_epoch

MAX_BYTES: Final = 2 * 1024 * 1024
MAX_EVENT_BYTES: Final = 64 * 1024


class SandboxEvents:
    """One instance a guest; belongs to the event loop it is made in."""

    def __init__(self) -> None:
        self.feed = JournalFeed(Journal(new_epoch(), max_bytes=MAX_BYTES))
        self._loop = asyncio.get_running_loop()

    def append(self, type: str, data: Mapping[str, JsonValue]) -> None:
        """Add an event. One that is too large is replaced by its size; after `close` nothing is added."""
        encoded = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        if len(encoded) > MAX_EVENT_BYTES:
            encoded = json.dumps({"omitted_bytes": len(encoded)}).encode()
        if not self.feed.closed:
            self.feed.append(type, encoded)

    def append_from_thread(self, type: str, data: Mapping[str, JsonValue]) -> None:
        """`append`, from any thread; soon."""
        try:
            self._loop.call_soon_threadsafe(self.append, type, data)
        except RuntimeError:  # the loop has ended, and the guest with it
            return

    def tell_of_memory_kill(self, pid: int, memory_bytes: int) -> None:
        """For the memory guard."""
        self.append_from_thread("out_of_memory", {"pid": pid, "memory_bytes": memory_bytes})

    def renew_journals(self) -> None:
        """See `Journal.renew`."""
        self.feed.journal.renew(new_epoch())

    def close(self) -> None:
        """Readers end."""
        self.feed.close()
