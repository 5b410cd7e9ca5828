"""What differs between two trees and two sets of variables. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from cloche.models import FileDifference, VariableDifference, VariableValue
from cloche.models.guest import VariableSummary

MAX_FILES: Final = 10_000
MAX_VARIABLES: Final = 1_000

Words = Mapping[str, str]
"""Relative path -> SHA-256, target or kind; see the guest's ``/v1/files/hashes``."""

Change = Literal["added", "changed", "removed"]


def change_of(before: object, after: object) -> Change | None:
    """None: nothing changed."""
    if before == after:
        return None
    if before is None:
        return "added"
    return "removed" if after is None else "changed"


def compare_files(before: Words, after: Words) -> Iterator[FileDifference]:
    """Sorted by path."""
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if (change := change_of(old, new)) is not None:
            yield FileDifference(path=path, change=change, before=old, after=new)


def compare_variables(
    context_id: str, before: Sequence[VariableSummary], after: Sequence[VariableSummary]
) -> Iterator[VariableDifference]:
    """Of one context. Values of which neither side has a digest are compared by what is shown of them."""
    old, new = ({one.name: one for one in side} for side in (before, after))
    for name in sorted(old.keys() | new.keys()):
        first, second = old.get(name), new.get(name)
        if first is not None and second is not None and _same(first, second):
            continue
        change = change_of(first, second)
        if change is not None:
            yield VariableDifference(
                context_id=context_id, name=name, change=change, before=_value(first), after=_value(second)
            )


def _same(first: VariableSummary, second: VariableSummary) -> bool:
    """The size is only a hint that may differ for equal values (lists grow in steps), so it does not count."""
    if first.digest is not None and second.digest is not None:
        return (first.type, first.digest) == (second.type, second.digest)
    return (first.type, first.summary) == (second.type, second.summary)


def _value(summary: VariableSummary | None) -> VariableValue | None:
    return None if summary is None else VariableValue(type=summary.type, summary=summary.summary)
