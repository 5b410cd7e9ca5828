"""Who the sandbox is, and the environment that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cloche.models.guest import Identity
from cloche_guest.config import GuestConfig, base_environment


@dataclass
class SandboxIdentity:
    """Mutable on purpose: a restore or a fork gives a running guest a new identity. Whoever starts something asks
    `environment` at that moment."""

    sandbox_id: str
    epoch: str
    env: Mapping[str, str]
    base: Mapping[str, str]
    sudo: bool = False

    def environment(self) -> dict[str, str]:
        """For everything started from now on."""
        ours = {"CLOCHE_SANDBOX_ID": self.sandbox_id} if self.sandbox_id else {}
        return {**self.base, **ours, **self.env}

    def become(self, identity: Identity) -> None:
        """Take on another identity; what runs already keeps the environment it was started with."""
        self.sandbox_id, self.epoch = identity.sandbox_id, identity.epoch
        self.env, self.sudo = dict(identity.env), identity.sudo


def first_identity(config: GuestConfig, environ: Mapping[str, str]) -> SandboxIdentity:
    """The one the guest was started with."""
    return SandboxIdentity(config.sandbox_id, config.epoch, config.env, base_environment(environ, config.account))
