"""What a rehearsal asks of a kernel: a cell that leaves no trace (`kernel_side/_warm_up.py`), and to take on who it is already.

See `LiveContext.rehearse`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from cloche.models.guest import Identity
from cloche_guest.contexts._identity_change import IdentityChange

_NOBODY: Final = Identity.model_construct(  # needs no validator, and a guest that starts builds none
    None, sandbox_id="", epoch="", env={}, sudo=False, now=datetime.fromtimestamp(0, UTC), seed="0" * 64, reason="claim"
)


def rehearsal_options(context_id: str, environment: Mapping[str, str], env: Mapping[str, str]) -> dict[str, Any]:
    """For the options of a cell. Pure. Nothing changes but the state of random generators, which a claim seeds anew."""
    change = IdentityChange(environment, environment, _NOBODY)
    return {"warm_up": True, "identity": change.for_kernel(context_id, env)}
