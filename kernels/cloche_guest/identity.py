"""Who the sandbox is, and the environment that follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cloche_guest.config import GuestConfig, base_environment


@dataclass
class SandboxIdentity:
    """Mutable on purpose: a restore or a fork gives a running guest a new identity. Whoever starts something asks
    `environment` at that moment."""

    sandbox_id: str
    epoch: str
    env: Mapping[str, str]
    base: Mapping[str, str]

    def environment(self) -> dict[str, str]:
        """For everything started from now on."""
        ours = {"CLOCHE_SANDBOX_ID": self.sandbox_id} if self.sandbox_id else {}
        return {**self.base, **ours, **self.env}

    def become(self, sandbox_id: str, epoch: str, env: Mapping[str, str]) -> None:
        """Take on another identity; what runs already keeps the environment it was started with."""
        self.sandbox_id, self.epoch, self.env = sandbox_id, epoch, dict(env)


def first_identity(config: GuestConfig, environ: Mapping[str, str]) -> SandboxIdentity:
    """The one the guest was started with."""
    return SandboxIdentity(config.sandbox_id, config.epoch, config.env, base_environment(environ, config.account))
