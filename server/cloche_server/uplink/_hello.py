"""The first line of every uplink, checked. Pure: bytes in, a decision out.

The guest is untrusted, and what dials may not even be a guest: every check answers a refusal in words that tell nothing
about what was expected.

A guest that was restored from a checkpoint still believes to be who it was then. It is told who it is now (`reborn`),
and comes back with that identity and a session of its own: the session in the checkpoint is in every copy of it.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pydantic import ValidationError

from cloche.models.guest import PROTOCOL_VERSION, Hello, HelloReply, Identity, RebirthReason
from cloche_server.auth import hash_secret

MAX_HELLO_BYTES: Final = 4096

HELLO_TIMEOUT_S: Final = 5.0
"""A guest writes its hello in the same breath as it connects."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Whose hello is accepted, and what it is told then.

    ``token_hash`` is of the token in the guest's environment until the first hello, and of the session that hello
    chose from then on: what user code may read in ``/proc/1/environ`` opens nothing any more. For a sandbox that is
    restored it is of the session in the checkpoint.

    ``previous``: sandbox id and epoch in the checkpoint it is restored from. ``seed`` and ``reason`` are told with the
    identity. A sandbox that was claimed has no previous identity: its guest says hello with ``former_epoch`` until it was told
    by ``POST /v1/identity``, and for a moment after that, when it dialled before. As long as there is a ``former_env`` nobody
    knows that it was told, and that is the environment it hears.
    """

    sandbox_id: str
    epoch: str
    token_hash: str
    env: dict[str, str]
    sudo: bool
    previous: tuple[str, str] | None = None
    seed: str = ""
    reason: RebirthReason | None = None
    former_epoch: str | None = None
    former_env: dict[str, str] | None = None

    def claimed(self, epoch: str, env: dict[str, str]) -> Expected:
        """As another one; its guest does not know it yet."""
        return replace(self, epoch=epoch, env=env, former_epoch=self.epoch, former_env=self.env)

    def as_known_to(self, hello: Hello) -> Expected:
        """Who the guest is, as far as it was told."""
        if self.former_env is None or hello.epoch != self.former_epoch:
            return self
        return replace(self, epoch=hello.epoch, env=self.former_env)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``hello`` when it is accepted, and the reply in every case. ``wrong_protocol``: the one a guest spoke that will never
    be understood, or 0."""

    hello: Hello | None
    reply: HelloReply
    wrong_protocol: int = 0


def check_hello(line: bytes, expected: Expected, now: datetime) -> Verdict:
    """What to answer to the first line of a connection."""
    protocol = _protocol(line)
    if protocol not in (0, PROTOCOL_VERSION):
        return Verdict(None, HelloReply(refused=f"the protocol is not {PROTOCOL_VERSION}"), protocol)
    try:
        hello = Hello.model_validate_json(line)
    except ValidationError:
        return _refusal("not a hello")
    # Hashes are compared, so neither length nor content of a secret shows in the time this takes.
    by_session = hmac.compare_digest(hash_secret(hello.session), expected.token_hash)
    by_token = hmac.compare_digest(hash_secret(hello.token), expected.token_hash)
    if by_session and expected.previous == (hello.sandbox_id, hello.epoch):
        return Verdict(None, HelloReply(identity=_identity(expected, now), reborn=True))
    if not (by_session or by_token) or hello.sandbox_id != expected.sandbox_id:
        return _refusal("unknown token")
    if hello.epoch not in (expected.epoch, expected.former_epoch):
        return _refusal("this epoch has ended")
    return Verdict(hello, HelloReply(identity=_identity(expected.as_known_to(hello), now)))


def _protocol(line: bytes) -> int:
    """What it claims to speak, before anything else is looked at: another version may have another form. 0: nothing."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return 0
    protocol = found.get("protocol") if isinstance(found, dict) else None
    return protocol if type(protocol) is int else 0


def _refusal(why: str) -> Verdict:
    return Verdict(None, HelloReply(refused=why))


def _identity(expected: Expected, now: datetime) -> Identity:
    return Identity(
        sandbox_id=expected.sandbox_id,
        epoch=expected.epoch,
        env=expected.env,
        sudo=expected.sudo,
        now=now,
        seed=expected.seed,
        reason=expected.reason,
    )
