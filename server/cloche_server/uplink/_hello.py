"""The first line of every uplink, checked. Pure: bytes in, a decision out.

The guest is untrusted, and what dials may not even be a guest: every check answers a refusal in words that tell nothing
about what was expected.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import ValidationError

from cloche.models.guest import PROTOCOL_VERSION, Hello, HelloReply, Identity
from cloche_server.auth import hash_secret

MAX_HELLO_BYTES: Final = 4096

HELLO_TIMEOUT_S: Final = 5.0
"""A guest writes its hello in the same breath as it connects."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Whose hello is accepted, and what it is told then.

    ``token_hash`` is of the token in the guest's environment until the first hello, and of the session that hello
    chose from then on: what user code may read in ``/proc/1/environ`` opens nothing any more.
    """

    sandbox_id: str
    epoch: str
    token_hash: str
    env: dict[str, str]
    sudo: bool


def check_hello(line: bytes, expected: Expected, now: datetime) -> tuple[Hello | None, HelloReply]:
    """The hello when it is accepted, and the reply in either case."""
    try:
        hello = Hello.model_validate_json(line)
    except ValidationError:
        return None, HelloReply(refused="not a hello")
    if hello.protocol != PROTOCOL_VERSION:
        return None, HelloReply(refused=f"the protocol is not {PROTOCOL_VERSION}")
    # Hashes are compared, so neither length nor content of a secret shows in the time this takes.
    known = [hmac.compare_digest(hash_secret(secret), expected.token_hash) for secret in (hello.session, hello.token)]
    if not any(known) or hello.sandbox_id != expected.sandbox_id:
        return None, HelloReply(refused="unknown token")
    if hello.epoch != expected.epoch:
        return None, HelloReply(refused="this epoch has ended")
    identity = Identity(
        sandbox_id=expected.sandbox_id, epoch=expected.epoch, env=expected.env, sudo=expected.sudo, now=now
    )
    return hello, HelloReply(identity=identity)
