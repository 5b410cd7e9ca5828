"""Lists that come in pages, read to their end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import BaseModel

from cloche._calls import Call, Query
from cloche._flow import Flow, send_patiently
from cloche._patience import Patience
from cloche.models import Page

M = TypeVar("M", bound=BaseModel)

LONGEST_PAGE: Final = 200
"""The server's own bound on `limit`."""


def all_pages(
    call_of: Callable[[Query], Call[Page[M]]], filters: Query, patience: Patience, limit: int | None = None
) -> Flow[list[M]]:
    """Everything ``call_of`` lists, or the first ``limit``."""
    found: list[M] = []
    page: str | None = None
    while True:
        size = LONGEST_PAGE if limit is None else max(1, min(LONGEST_PAGE, limit - len(found)))
        query = (*filters, ("limit", str(size)), *((("page", page),) if page else ()))
        answer = yield from send_patiently(call_of(query), patience)
        found += answer.items
        page = answer.next_page
        if page is None or (limit is not None and len(found) >= limit):
            return found[:limit]
