"""The states of a sandbox, and what leads from one to another.

Rules:

- Everything about which state follows which is in the table here. Nothing else assigns a state.
- `TRANSIENT` states have somebody who works on them. Each has an end for success, for failure, and for the death of the
  sandbox; what a new server makes of one whose worker died with the old server is in `resolution`.
- Saving never loses: until it has succeeded the sandbox runs (`SAVE_FAILED`), and waking never loses: until the guest has
  answered, what was saved is kept (`KEPT_MEMORY`, `KEPT_FILES`).
- ``deleted`` is final. ``failed`` can only be deleted.

The drawing is in docs/lifecycle.md.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from cloche.errors import ClocheError, Gone, InternalError, SandboxNotRunning
from cloche.models import SandboxState


class Event(StrEnum):
    """What happens. The first six are asked for, the others are how something asked for ended."""

    PAUSE = "pause"
    SUSPEND = "suspend"
    STOP = "stop"
    RESUME = "resume"
    RESTORE = "restore"
    DELETE = "delete"

    STARTED = "started"
    """The guest answered: after a create, a resume or a restore."""
    START_FAILED = "start_failed"
    SAVED = "saved"
    SAVE_FAILED = "save_failed"
    KEPT_MEMORY = "kept_memory"
    """It could not be woken, or rolled back; memory and files are on disk."""
    KEPT_FILES = "kept_files"
    """The same, and files alone are on disk."""
    ENDED = "ended"
    """The sandbox is not there any more: it ended by itself, or what was saved of it is gone."""


_S = SandboxState
_E = Event

TRANSIENT: Final = frozenset({_S.CREATING, _S.SUSPENDING, _S.STOPPING, _S.RESUMING, _S.RESTORING})

LEGAL: Final[dict[tuple[SandboxState, Event], SandboxState]] = {
    (_S.CREATING, _E.STARTED): _S.RUNNING,
    (_S.CREATING, _E.START_FAILED): _S.FAILED,
    (_S.CREATING, _E.ENDED): _S.FAILED,
    (_S.RUNNING, _E.PAUSE): _S.PAUSED,
    (_S.RUNNING, _E.SUSPEND): _S.SUSPENDING,
    (_S.RUNNING, _E.STOP): _S.STOPPING,
    (_S.RUNNING, _E.RESTORE): _S.RESTORING,
    (_S.RUNNING, _E.ENDED): _S.FAILED,
    (_S.PAUSED, _E.RESUME): _S.RUNNING,
    (_S.PAUSED, _E.SUSPEND): _S.SUSPENDING,
    (_S.PAUSED, _E.STOP): _S.STOPPING,
    (_S.PAUSED, _E.RESTORE): _S.RESTORING,
    (_S.PAUSED, _E.ENDED): _S.FAILED,
    (_S.SUSPENDING, _E.SAVED): _S.SUSPENDED,
    (_S.SUSPENDING, _E.SAVE_FAILED): _S.RUNNING,
    (_S.SUSPENDING, _E.ENDED): _S.FAILED,
    (_S.STOPPING, _E.SAVED): _S.STOPPED,
    (_S.STOPPING, _E.SAVE_FAILED): _S.RUNNING,
    (_S.STOPPING, _E.ENDED): _S.FAILED,
    (_S.SUSPENDED, _E.RESUME): _S.RESUMING,
    (_S.SUSPENDED, _E.RESTORE): _S.RESTORING,
    (_S.SUSPENDED, _E.ENDED): _S.FAILED,
    (_S.STOPPED, _E.RESUME): _S.RESUMING,
    (_S.STOPPED, _E.RESTORE): _S.RESTORING,
    (_S.STOPPED, _E.ENDED): _S.FAILED,
    (_S.RESUMING, _E.STARTED): _S.RUNNING,
    (_S.RESUMING, _E.KEPT_MEMORY): _S.SUSPENDED,
    (_S.RESUMING, _E.KEPT_FILES): _S.STOPPED,
    (_S.RESUMING, _E.ENDED): _S.FAILED,
    (_S.RESTORING, _E.STARTED): _S.RUNNING,
    (_S.RESTORING, _E.KEPT_MEMORY): _S.SUSPENDED,
    (_S.RESTORING, _E.KEPT_FILES): _S.STOPPED,
    (_S.RESTORING, _E.ENDED): _S.FAILED,
    **{(state, _E.DELETE): _S.DELETED for state in _S if state is not _S.DELETED},
}

_ASKED: Final = frozenset({_E.PAUSE, _E.SUSPEND, _E.STOP, _E.RESUME, _E.RESTORE})

_ON_DISK: Final = frozenset({_S.SUSPENDED, _S.STOPPED})


def next_state(state: SandboxState, event: Event, sandbox_id: str = "") -> SandboxState:
    """
    Raises:
        Gone: it was deleted.
        SandboxNotRunning: what is asked for needs another state first.
        InternalError: an end of something that was not under way: a defect.
    """
    found = LEGAL.get((state, event))
    if found is None:
        raise _refusal(state, event, sandbox_id)
    return found


def _refusal(state: SandboxState, event: Event, sandbox_id: str) -> ClocheError:
    if state is _S.DELETED:
        return Gone(f"sandbox {sandbox_id} was deleted", details={"kind": "sandbox", "id": sandbox_id})
    if event in _ASKED:
        return SandboxNotRunning(
            f"sandbox {sandbox_id} is {state.value}; {event.value} is not possible now",
            hint="resume it first" if state in _ON_DISK else "see docs/lifecycle.md: what follows what",
            details={"state": state.value, "sandbox_id": sandbox_id},
        )
    return InternalError(f"sandbox {sandbox_id} is {state.value}, and {event.value} cannot happen")
