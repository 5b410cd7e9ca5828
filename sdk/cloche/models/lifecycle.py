"""Lifecycle: the states of a sandbox, and what happens to it when nobody works in it or its time is over."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from cloche.models._base import Model, SandboxId, Timestamp


class SandboxState(StrEnum):
    """Which state follows which: `cloche_server.lifecycle.machine`, drawn in docs/lifecycle.md.

    ``paused`` is frozen in RAM, ``suspended`` is on disk with its memory, ``stopped`` on disk with its files alone.
    ``failed``: a start failed, or the sandbox ended by itself.
    """

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    STOPPED = "stopped"
    RESUMING = "resuming"
    RESTORING = "restoring"
    FAILED = "failed"
    DELETED = "deleted"


class PolicyAction(StrEnum):
    """``suspend`` needs a driver that saves memory; ``stop`` keeps files alone."""

    NOTHING = "nothing"
    SUSPEND = "suspend"
    STOP = "stop"
    DELETE = "delete"


class LifecyclePolicy(Model):
    """What the server does by itself. All times in seconds; null: never.

    Idle means that no cell, busy process or terminal in use is in the sandbox, and that no call was made to it. A
    client that is merely connected does not count.
    """

    idle_timeout_s: float | None = Field(default=None, ge=1, le=31_536_000)
    idle_action: PolicyAction = PolicyAction.SUSPEND
    max_lifetime_s: float | None = Field(
        default=None, ge=1, le=31_536_000, description="from the create, or the claim of a warm sandbox"
    )
    lifetime_action: PolicyAction = PolicyAction.DELETE
    delete_after_s: float | None = Field(
        default=None, ge=1, le=315_360_000, description="a sandbox suspended or stopped for so long is deleted"
    )
    auto_resume: bool = Field(
        default=True, description="the next call, terminal or preview wakes a paused, suspended or stopped sandbox"
    )


class Origin(Model):
    """Where a sandbox came from; ``id`` is of the snapshot, the forked sandbox or the template's version."""

    kind: Literal["image", "snapshot", "fork", "template"] = "image"
    id: str | None = None
    warm: bool = Field(default=False, description="claimed from a pool")


class StateChange(Model):
    """Answer of pause, suspend, stop and resume. ``duration_s``: the whole call; ``paused_s``: the sandbox stood still."""

    sandbox_id: SandboxId
    state: SandboxState
    epoch: str
    duration_s: float
    paused_s: float | None = None


class Lifetime(Model):
    """When a policy will act, if nothing happens until then; null: it will not. ``deletes_at``: by ``delete_after_s``."""

    idle_at: Timestamp | None
    ends_at: Timestamp | None
    deletes_at: Timestamp | None = None
