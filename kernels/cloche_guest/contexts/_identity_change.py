"""What a kernel is told when its sandbox gets another identity. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloche.models.guest import Identity


@dataclass(frozen=True, slots=True)
class IdentityChange:
    """`before` and `after`: the environment of new programs before and after the change."""

    before: Mapping[str, str]
    after: Mapping[str, str]
    identity: Identity

    @property
    def may_wait(self) -> bool:
        """A claim is for what comes next. Copies and what goes on must know at once which one they are."""
        return self.identity.reason == "claim"

    def for_kernel(self, context_id: str, env: Mapping[str, str]) -> dict[str, Any]:
        """The content of the message. Only what differs is told: everything else the code may have set itself.

        Random generators are seeded in copies, which must not draw the same numbers; a sandbox that goes on, or goes back,
        keeps them. Each kernel gets a seed of its own. `once`: what may wait may come by two ways, and counts once.
        """
        before, after = {**self.before, **env}, {**self.after, **env}
        seeded = self.identity.seed and self.identity.reason in ("fork", "claim")
        seed = hashlib.sha256(f"{self.identity.seed}:{context_id}".encode()).hexdigest() if seeded else ""
        return {
            "set": {name: value for name, value in after.items() if before.get(name) != value},
            "unset": sorted(before.keys() - after.keys()),
            "seed": seed,
            "reason": self.identity.reason,
            "sandbox_id": self.identity.sandbox_id,
            "once": self.identity.epoch if self.may_wait else "",
        }
