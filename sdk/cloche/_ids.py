"""Ids that a client makes. The source of randomness is passed in; it must be a good one, ids are not to be guessed."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence
from typing import Final

ALPHABET: Final = string.ascii_lowercase + string.digits
RUN_ID_CHARACTERS: Final = 12

Choice = Callable[[Sequence[str]], str]


def new_run_id(choice: Choice = secrets.choice) -> str:
    """A run id: 62 bits of randomness, against collisions among the runs of one context."""
    return "run-" + "".join(choice(ALPHABET) for _ in range(RUN_ID_CHARACTERS))


def new_process_id(choice: Choice = secrets.choice) -> str:
    """A process id, as `new_run_id`."""
    return "proc-" + "".join(choice(ALPHABET) for _ in range(RUN_ID_CHARACTERS))


def new_idempotency_key(choice: Choice = secrets.choice) -> str:
    """A key for one create: 124 bits."""
    return "".join(choice(ALPHABET) for _ in range(2 * RUN_ID_CHARACTERS))
