"""Who the sandbox is, and the environment that follows from it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from cloche.models.guest import Identity
from cloche_guest.config import GuestConfig, base_environment


def new_epoch() -> str:
    """The name of one life: of a guest, or of a journal."""
    return secrets.token_hex(8)


@dataclass
class SandboxIdentity:
    """Mutable on purpose: a restore or a fork gives a running guest a new identity. Whoever starts something asks
    `environment` at that moment.

    `guest_epoch` is ours: as long as it stays, the journals go on.
    """

    sandbox_id: str
    epoch: str
    env: Mapping[str, str]
    base: Mapping[str, str]
    sudo: bool = False
    guest_epoch: str = field(default_factory=new_epoch)

    def environment(self) -> dict[str, str]:
        """For everything started from now on."""
        ours = {"CLOCHE_SANDBOX_ID": self.sandbox_id} if self.sandbox_id else {}
        return {**self.base, **ours, **self.env}

    def become(self, identity: Identity) -> None:
        """Take on another identity; see `rebirth` for what runs already."""
        self.sandbox_id, self.epoch = identity.sandbox_id, identity.epoch
        self.env, self.sudo = dict(identity.env), identity.sudo


def first_identity(config: GuestConfig, environ: Mapping[str, str]) -> SandboxIdentity:
    """The one the guest was started with."""
    return SandboxIdentity(config.sandbox_id, config.epoch, config.env, base_environment(environ, config.account))
