"""Random generators of a copied process: without this every copy draws the same numbers.

Nothing is imported: a generator that exists has its module loaded. Generators that code made itself
(``random.Random()``, ``numpy.random.default_rng()``) cannot be found and stay as they are.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys


def seed_generators(seed: bytes) -> None:
    """Seed the global generators of `random`, numpy and torch with these 32 bytes."""
    random.seed(seed)
    numpy = sys.modules.get("numpy.random")
    with contextlib.suppress(Exception):  # it may be half imported, in the main thread
        if numpy is not None:
            numpy.seed([int.from_bytes(seed[at : at + 4], "big") for at in range(0, len(seed), 4)])
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):
        if torch is not None:
            torch.manual_seed(int.from_bytes(seed[:7], "big"))


def stir_openssl() -> None:
    """OpenSSL notices a fork by the pid, but not that its whole machine was copied: keys and nonces would repeat."""
    ssl = sys.modules.get("ssl")
    with contextlib.suppress(Exception):
        if ssl is not None:
            ssl.RAND_add(os.urandom(32), 32.0)
