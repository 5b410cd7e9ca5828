"""Ids of what is no more, so that it is `Gone` and not unknown, and nothing is made twice under one id."""

from __future__ import annotations

from collections import OrderedDict


class LatestIds:
    """The latest ``limit`` ids that were added."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, one: str) -> bool:
        return one in self._ids

    def add(self, one: str) -> None:
        """The oldest makes room."""
        self._ids[one] = None
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)
