"""What becomes of a sandbox whose server died, from what the new one finds. Pure; the doing is in
`cloche_server.sandboxes.recover`.

Nothing that was acknowledged is lost: a sandbox that is alive was not saved yet, so it runs on; one that is not alive
while it was saved is complete on disk, for a driver ends it only after the last byte; and what was saved is kept until a
guest of the new life has said hello.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloche.models import SandboxState
from cloche_server.lifecycle.machine import Event

_S = SandboxState


@dataclass(frozen=True, slots=True)
class Found:
    """``alive``: the driver has it, running or frozen. ``saved``: there is a directory with what was saved, or (restoring)
    what it is rolled back to; ``memory``: with its memory. ``greeted``: a guest of the new life said hello."""

    alive: bool
    saved: bool
    memory: bool = True
    greeted: bool = False


def resolve(state: SandboxState, found: Found) -> Event | None:
    """What has happened; None: nothing, it is what it was. A sandbox that is not to be alive afterwards is destroyed by the
    caller, and the other way round what was saved of one that runs is removed."""
    event: Event | None
    match state:
        case _S.CREATING:
            event = Event.START_FAILED
        case _S.RUNNING | _S.PAUSED:
            event = None if found.alive else Event.ENDED
        case _S.SUSPENDING | _S.STOPPING:
            event = Event.SAVE_FAILED if found.alive else Event.SAVED if found.saved else Event.ENDED
        case _S.SUSPENDED | _S.STOPPED:
            event = None if found.saved else Event.ENDED
        case _S.RESUMING | _S.RESTORING:
            event = _after_waking(found)
        case _:
            event = None
    return event


def _after_waking(found: Found) -> Event:
    if found.alive and (found.greeted or not found.saved):
        return Event.STARTED
    if not found.saved:
        return Event.ENDED
    return Event.KEPT_MEMORY if found.memory else Event.KEPT_FILES
