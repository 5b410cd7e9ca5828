"""Several conditions as one: when is a wait over? Pure.

| facts | verdict |
|---|---|
| any: one met; all: all met | met |
| any: all failed; all: one failed | impossible |
| else | open |
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Literal


class Outcome(Enum):
    """Of one condition. FAILED: it cannot be met any more."""

    OPEN = "open"
    MET = "met"
    FAILED = "failed"


class Verdict(Enum):
    """Of the wait."""

    OPEN = "open"
    MET = "met"
    IMPOSSIBLE = "impossible"


def judge(mode: Literal["all", "any"], outcomes: Sequence[Outcome]) -> Verdict:
    """Of at least one condition."""
    decided, other = (all, any) if mode == "all" else (any, all)
    if decided(outcome is Outcome.MET for outcome in outcomes):
        return Verdict.MET
    if other(outcome is Outcome.FAILED for outcome in outcomes):
        return Verdict.IMPOSSIBLE
    return Verdict.OPEN
