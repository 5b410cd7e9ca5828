"""Sandboxes: what can be asked for, and what is said of one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from cloche.models._base import Env, Labels, Model, Name, SandboxId, Timestamp
from cloche.models.failures import Failure
from cloche.models.lifecycle import LifecyclePolicy, Lifetime, Origin, SandboxState
from cloche.models.volumes import VolumeAttachment

DriverName = Literal["gvisor", "runc"]


class Resources(Model):
    """Limits of one sandbox; each is enforced by the kernel or the runtime, none is a wish."""

    cpus: float = Field(default=2.0, ge=0.1, le=256, description="CPU cores, as a share of time")
    memory_mb: int = Field(default=2048, ge=128, le=1_048_576, description="MiB of RAM; there is no swap")
    max_processes: int = Field(default=512, ge=32, le=65_536, description="processes and threads")
    disk_mb: int = Field(default=4096, ge=64, le=1_048_576, description="MiB the sandbox may write over its image")


class SandboxCreate(Model):
    """Body of ``POST /v1/sandboxes``.

    With ``snapshot`` or ``template`` the image, the driver, the resources and sudo are theirs, and giving one of these,
    too, is refused; ``env`` is added to theirs. ``warm``: false never takes a ready sandbox out of a pool.
    """

    image: str = Field(default="python", min_length=1, max_length=128, description="image name or digest")
    name: Name | None = Field(default=None, description="unique among the owner's sandboxes that are not deleted")
    driver: DriverName | None = Field(default=None, description="null: the strongest that passes its self-test")
    resources: Resources = Resources.model_construct()
    env: Env = Field(default={}, description="environment of everything started in the sandbox")
    sudo: bool = Field(default=True, description="false: no way to become root inside")
    labels: Labels = {}
    metadata: dict[str, JsonValue] = Field(default={}, max_length=64)
    snapshot: str | None = Field(default=None, min_length=1, max_length=128, description="id or name")
    template: str | None = Field(default=None, min_length=1, max_length=80, description="name or name@version")
    volumes: list[VolumeAttachment] = Field(default=[], max_length=16)
    lifecycle: LifecyclePolicy = LifecyclePolicy.model_construct()
    warm: bool = True


class SandboxUpdate(Model):
    """Body of ``PATCH /v1/sandboxes/{sandbox_id}``. What is left out stays as it is."""

    name: Name | None = Field(default=None, description="null: none from now on; left out: as it is")
    labels: Labels | None = None
    metadata: dict[str, JsonValue] | None = Field(default=None, max_length=64)
    lifecycle: LifecyclePolicy | None = None


class Sandbox(Model):
    """One sandbox. ``env`` lists names only: values may be secrets, and nobody needs them read back."""

    id: SandboxId
    name: str | None
    owner: str
    state: SandboxState
    image: str
    image_digest: str
    driver: DriverName
    isolation: str = Field(description="the boundary, in a few words, for people to judge")
    capabilities: list[str]
    epoch: str = Field(description="runtime epoch: new in every life of the sandbox")
    resources: Resources
    sudo: bool
    env: list[str]
    labels: Labels
    metadata: dict[str, JsonValue]
    created_at: Timestamp
    started_at: Timestamp | None = Field(description="of this life")
    failure: Failure | None = None
    lifecycle: LifecyclePolicy
    lifetime: Lifetime
    last_activity_at: Timestamp = Field(description="the last call that went into it, or work that was seen in it")
    origin: Origin
    parent: str | None = Field(description="the snapshot it was last saved to, made from or rolled back to")
    volumes: list[VolumeAttachment]
