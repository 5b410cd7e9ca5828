"""Is a service's program started again, and when? Pure."""

from __future__ import annotations

from typing import Final

from cloche.models import ProcessExit, RestartPolicy

STABLE_S: Final = 60.0
"""A program that was up for so long starts counting its restarts anew."""


def is_success(exit_status: ProcessExit | None) -> bool:
    """It ended by itself with exit code 0; one that is lost or did not start did not."""
    return exit_status is not None and exit_status.code == 0


def restart_delay_s(policy: RestartPolicy, exit_status: ProcessExit | None, restarts_in_row: int) -> float | None:
    """Seconds to wait before the next start; None: there is none."""
    if policy.when == "never" or (policy.when == "on_failure" and is_success(exit_status)):
        return None
    if restarts_in_row >= policy.max_restarts:
        return None
    return min(policy.delay_s * 2.0 ** min(restarts_in_row, 64), policy.max_delay_s)


def in_row(restarts_in_row: int, up_s: float) -> int:
    """The count after a life of `up_s` seconds."""
    return 0 if up_s >= STABLE_S else restarts_in_row
