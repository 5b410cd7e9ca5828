"""Why something ended before its time."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cloche.models._base import Model


class Failure(Model):
    """Why a sandbox, a context or a run ended before its time."""

    reason: Literal[
        "out_of_memory", "signal", "exit", "start_failed", "lost", "interrupted", "timeout", "restarted", "deleted"
    ]
    message: str
    exit_code: int | None = None
    signal: str | None = Field(default=None, description="name, as in SIGKILL")
