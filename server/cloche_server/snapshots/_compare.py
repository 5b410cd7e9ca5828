"""Comparing two sandboxes, or what snapshots are of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import Final, TypeVar

from cloche.errors import NotFound
from cloche.models import Compare, Comparison, FileDifference, VariableDifference
from cloche.models.guest import VariableSummary
from cloche.path_text import from_text
from cloche_server.snapshots._differences import MAX_FILES, MAX_VARIABLES, compare_files, compare_variables
from cloche_server.snapshots._guest_view import GuestView
from cloche_server.snapshots._text_diff import MAX_BYTES, unified_diff

MAX_DIFFS: Final = 200
"""Files with a diff; the next ones are listed without."""

MAX_DIFF_BYTES: Final = 8 * 1024 * 1024
"""Of all diffs together."""

T = TypeVar("T")


async def compare(before: GuestView, after: GuestView, wanted: Compare) -> Comparison:
    """Nothing is written to either."""
    files, more_files = await _files(before, after, wanted.root)
    variables, more_variables = await _variables(before, after)
    if wanted.diffs:
        files = await _with_diffs(before, after, wanted.root, files)
    return Comparison(files=files, variables=variables, truncated=more_files or more_variables)


async def _files(before: GuestView, after: GuestView, root: str) -> tuple[list[FileDifference], bool]:
    old, new = await asyncio.gather(before.tree(root), after.tree(root))
    if old is None and new is None:
        raise NotFound(f"neither has a directory {root[:300]}", details={"kind": "file", "id": root[:300]})
    (words, more), (new_words, new_more) = old or ({}, False), new or ({}, False)
    found = list(islice(compare_files(words, new_words), MAX_FILES + 1))
    return found[:MAX_FILES], more or new_more or len(found) > MAX_FILES


async def _variables(before: GuestView, after: GuestView) -> tuple[list[VariableDifference], bool]:
    old, new = await asyncio.gather(before.contexts(), after.contexts())
    found: list[VariableDifference] = []
    truncated = False
    for context_id in sorted({*old, *new}):
        sides = await asyncio.gather(_summaries(before, context_id, old), _summaries(after, context_id, new))
        found.extend(compare_variables(context_id, sides[0][0], sides[1][0]))
        truncated = truncated or sides[0][1] or sides[1][1]
    return found[:MAX_VARIABLES], truncated or len(found) > MAX_VARIABLES


async def _summaries(
    view: GuestView, context_id: str, contexts: Sequence[str]
) -> tuple[Sequence[VariableSummary], bool]:
    if context_id not in contexts:
        return (), False
    found = await view.variables(context_id)
    return found.variables, found.truncated


async def _with_diffs(
    before: GuestView, after: GuestView, root: str, files: Sequence[FileDifference]
) -> list[FileDifference]:
    left, result = MAX_DIFF_BYTES, []
    for index, file in enumerate(files):
        diff = await _diff(before, after, root, file) if index < MAX_DIFFS and left > 0 else None
        left -= len(diff or "")
        result.append(file.model_copy(update={"diff": diff}))
    return result


async def _diff(before: GuestView, after: GuestView, root: str, file: FileDifference) -> str | None:
    """Of files alone: a word of 64 hexadecimal digits is the digest of one."""
    if not all(word is None or _is_digest(word) for word in (file.before, file.after)):
        return None
    path = f"{root.rstrip('/')}/{file.path}"
    old = await before.content(path, MAX_BYTES) if file.before else b""
    new = await after.content(path, MAX_BYTES) if file.after else b""
    return None if old is None or new is None else await asyncio.to_thread(unified_diff, old, new, from_text(file.path))


def _is_digest(word: str) -> bool:
    return len(word) == 64 and all(c in "0123456789abcdef" for c in word)
