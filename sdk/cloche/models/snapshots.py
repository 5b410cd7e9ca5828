"""Snapshots: a sandbox of one instant, saved; and what differs between two."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from cloche.models._base import Env, Labels, Model, Name, SandboxId, Timestamp
from cloche.models.lifecycle import LifecyclePolicy
from cloche.models.sandboxes import Resources, Sandbox
from cloche.models.volumes import VolumeAttachment

SnapshotId = Annotated[str, StringConstraints(pattern=r"^snap-[a-z0-9]{12}$")]


class Retention(Model):
    """``ttl_s``: deleted so long after it was made. ``keep_last``: of this sandbox' snapshots whose names are the same but
    for a number or date at the end, only so many newest are kept. Null: kept until deleted."""

    ttl_s: float | None = Field(default=None, ge=1, le=315_360_000)
    keep_last: int | None = Field(default=None, ge=1, le=1000)


class SnapshotCreate(Model):
    """Body of ``POST .../snapshots``. ``memory`` null: what the driver can; true: `UnsupportedCapability` where it cannot."""

    name: Name | None = Field(default=None, description="unique among the owner's snapshots")
    labels: Labels = {}
    memory: bool | None = None
    retention: Retention = Retention.model_construct()


class Snapshot(Model):
    """Immutable. ``paused_s``: how long the sandbox stood still for it. ``volumes`` are not in it: a sandbox made from
    it has the same volumes attached, with what is in them then."""

    id: SnapshotId
    name: str | None
    owner: str
    labels: Labels
    state: Literal["creating", "ready", "broken", "deleted"]
    sandbox_id: SandboxId | None = Field(description="of which sandbox; null for an imported one")
    parent: SnapshotId | None = Field(
        description="the snapshot its sandbox was last saved to, made from or rolled back to"
    )
    memory: bool
    driver: str
    image: str
    image_digest: str
    resources: Resources
    volumes: list[VolumeAttachment]
    size_bytes: int = Field(description="on the server's disk")
    digest: str | None = Field(description="SHA-256 over the content; null until it is known")
    paused_s: float
    created_at: Timestamp
    expires_at: Timestamp | None
    template: str | None = Field(default=None, description="name@version when a template's build made it")


class SnapshotNode(Model):
    """One line of the tree. ``parent``: its nearest ancestor that is still there; null: a root. ``depth`` of a root is 0."""

    snapshot: Snapshot
    parent: SnapshotId | None
    depth: int


class SnapshotTree(Model):
    """In the order in which a tree is drawn: every node behind its parent, siblings oldest first. A list, because a
    sandbox that is saved a thousand times is a thousand levels deep."""

    nodes: list[SnapshotNode]


class Restore(Model):
    """Body of ``POST .../restore``: roll the sandbox back, in place."""

    snapshot: str = Field(min_length=1, max_length=128, description="id or name")


class Fork(Model):
    """Body of ``POST .../fork``: ``count`` sandboxes from one instant of a running one.

    ``names``: empty, or one for each child. ``env`` is added to the source's, ``envs`` (empty, or one for each child)
    to that. A driver that cannot save memory refuses unless ``memory`` is false.
    """

    count: int = Field(default=1, ge=1, le=100)
    names: list[Name] = Field(default=[], max_length=100)
    env: Env = {}
    envs: list[Env] = Field(default=[], max_length=100)
    labels: Labels | None = Field(default=None, description="null: the source's")
    memory: bool = True
    lifecycle: LifecyclePolicy | None = Field(default=None, description="null: the source's")


class ForkChild(Model):
    """Outcome for one child: a sandbox, or why there is none."""

    index: int
    sandbox: Sandbox | None
    error: dict[str, object] | None = None


class ForkResult(Model):
    """``paused_s``: how long the source stood still; ``ready_s`` until the last child answered."""

    children: list[ForkChild]
    paused_s: float
    ready_s: float


class FileDifference(Model):
    """``diff``: unified, of text files, when asked for and not over its bound."""

    path: str
    change: Literal["added", "changed", "removed"]
    before: str | None = Field(description="SHA-256 of the content, the target of a link, or the kind; null: none")
    after: str | None
    diff: str | None = None


class VariableValue(Model):
    """One variable of a Python context."""

    type: str
    summary: str


class VariableDifference(Model):
    """One variable that differs."""

    context_id: str
    name: str
    change: Literal["added", "changed", "removed"]
    before: VariableValue | None
    after: VariableValue | None


class Compare(Model):
    """Body of ``POST /v1/compare``: two sandboxes or snapshots, by id. A snapshot is started for it, and removed."""

    before: str = Field(min_length=1, max_length=128)
    after: str = Field(min_length=1, max_length=128)
    root: str = Field(default="/workspace", pattern=r"^/[^\x00]*$", max_length=4096)
    diffs: bool = False


class Comparison(Model):
    """``truncated``: there are more than the 10,000 files or 1,000 variables that are listed."""

    files: list[FileDifference]
    variables: list[VariableDifference]
    truncated: bool
