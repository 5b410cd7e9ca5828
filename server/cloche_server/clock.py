"""Time as the server stores it: whole microseconds since 1970 in the database, aware UTC datetimes on the wire."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

Clock = Callable[[], int]
"""Returns microseconds since 1970. Passed in, so that tests choose the time."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    return time.time_ns() // 1000


def to_datetime(microseconds: int) -> datetime:
    """Exact: no float on the way."""
    return _EPOCH + timedelta(microseconds=microseconds)
