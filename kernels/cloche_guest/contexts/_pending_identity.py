"""What a kernel has not heard of the new identity of its sandbox: it goes along with the next cell.

A message of its own costs as much as a small cell. Threads of a kernel that runs on must see it soon, so without a cell it
goes by itself after `LATER_S`; before any question, too. After that the next cell brings it all the same, as a cell may
overtake a message of another channel: the kernel takes on each change once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

LATER_S: Final = 1.0
"""The first cell of a claimed sandbox usually comes within some milliseconds."""


class PendingIdentity:
    """At most one change. `send` sends it by itself, and waits for no answer."""

    def __init__(self, send: Callable[[Mapping[str, Any]], object]) -> None:
        self._send = send
        self._content: Mapping[str, Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def put(self, content: Mapping[str, Any]) -> None:
        """Let it wait; one before it waits no longer."""
        self.say()
        self._content = content
        self._timer = asyncio.get_running_loop().call_later(LATER_S, self.say)

    def say(self) -> None:
        """By itself, if that was not done."""
        if self._timer is not None and self._content is not None:
            self._send(self._content)
        self._stop_timer()

    def with_cell(self) -> dict[str, Any]:
        """To be put into the options of the next cell."""
        content, self._content = self._content, None
        self._stop_timer()
        return {} if content is None else {"identity": content}

    def drop(self) -> None:
        """Another change makes it void, or the end does."""
        self._content = None
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
