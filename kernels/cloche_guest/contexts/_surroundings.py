"""What every context needs of the guest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import zmq
from pydantic import JsonValue

from cloche_guest.clock import Clock
from cloche_guest.contexts._launcher import Launcher
from cloche_guest.contexts._spare import Spares


@dataclass(frozen=True)
class Surroundings:
    """One instance for all contexts."""

    launcher: Launcher
    spares: Spares
    zmq_context: zmq.Context[zmq.Socket[bytes]]
    environment: Callable[[], dict[str, str]]
    starts: asyncio.Semaphore
    """Kernels starting at one time: starting is CPU bound, more at once only makes all of them late."""
    tell: Callable[[str, Mapping[str, JsonValue]], None]
    """Gets the events for the sandbox' journal."""
    clock: Clock
