"""Whether this machine's runtime can bring back the memory that another one saved. Pure.

The memory is a state of the runtime's own kernel: another version of it reads it wrong or not at all. It has programs in it
that have looked which processor they run on, so a processor that can do less does not do either; the runtime checks that
by itself, and only it knows which of the processor's features it shows.
"""

from __future__ import annotations

from typing import Final

from cloche.errors import UnsupportedCapability
from cloche_server.drivers._checkpoint import Record

OTHER_PROCESSOR: Final = "missing features: "
"""What the pinned runsc says before it names what this processor lacks."""

MAX_FEATURES: Final = 200
"""Characters of their names, in a message."""

_HINT: Final = "start it on a server like the one that saved it; files alone can be copied out of a sandbox there"


def check_runtime(record: Record, version: str) -> None:
    """`UnsupportedCapability` when ``version`` did not make the checkpoint. An empty one is not known."""
    if record.memory and record.runtime and version and record.runtime != version:
        raise UnsupportedCapability(
            f"the memory was saved by {record.driver} {record.runtime}, and {version} is here",
            hint=_HINT,
            details={
                "driver": record.driver,
                "capability": "memory_snapshot",
                "reason": "other_runtime",
                "saved_by": record.runtime,
                "here": version,
            },
        )


def check_processor(driver: str, words: str) -> None:
    """`UnsupportedCapability` when these words of a runtime that could not restore say that the processor is another."""
    _, found, after = words.partition(OTHER_PROCESSOR)
    if found:
        missing = after.splitlines()[0].strip()[:MAX_FEATURES]
        raise UnsupportedCapability(
            f"the memory was saved on another processor; this one lacks: {missing}",
            hint=_HINT,
            details={
                "driver": driver,
                "capability": "memory_snapshot",
                "reason": "other_processor",
                "missing": missing,
                "output": words[-4000:],
            },
        )
