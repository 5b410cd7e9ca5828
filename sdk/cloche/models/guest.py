"""What server and guest say to each other; clients never see these."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, StringConstraints

from cloche.models._base import ContextId, Env, Model, Timestamp

PROTOCOL_VERSION = 2
"""2: hellos may be answered with another identity, and uplinks are closed on request."""

RebirthReason = Literal["fork", "restore", "resume", "claim"]
"""Why a guest has another identity than before: it is a copy of a running sandbox or was made from a snapshot (`fork`),
was rolled back (`restore`), was woken (`resume`), or was taken out of a pool (`claim`)."""


class Hello(Model):
    """First line of every uplink, guest to server, as one line of JSON."""

    protocol: int
    sandbox_id: str = Field(max_length=64)
    epoch: str = Field(max_length=64, description="runtime epoch, of the identity the guest has now")
    guest_epoch: str = Field(max_length=64, description="random; as long as it stays, journals go on")
    token: str = Field(
        max_length=256,
        description="from the guest's environment, or the session of the life before; good until the first accepted hello",
    )
    session: str = Field(
        min_length=32, max_length=256, description="chosen by the guest, never leaves its memory; good from then on"
    )


class Identity(Model):
    """Who the guest is from now on; applied before it serves."""

    sandbox_id: str
    epoch: str
    env: Env
    sudo: bool = Field(description="whether the guest starts commands as root for the user")
    now: Timestamp
    seed: str = Field(
        default="",
        pattern=r"^([0-9a-f]{64})?$",
        description="32 random bytes for random generators, others in every child; empty: nothing is seeded",
    )
    reason: RebirthReason | None = Field(default=None, description="null: nothing has changed since the guest started")


class HelloReply(Model):
    """One line of JSON, server to guest. Refused: ``identity`` is null, ``refused`` says why, the connection ends.

    ``reborn``: the guest was restored from a checkpoint. It becomes ``identity``, and dials again; this connection ends.
    """

    identity: Identity | None = None
    reborn: bool = False
    refused: str | None = None


class GuestHealth(Model):
    """``GET /v1/health`` of the guest."""

    status: str
    guest_epoch: str
    contexts: int
    memory_bytes: int = Field(description="resident memory of the guest daemon itself")
    open_files: int


class UplinksClose(Model):
    """Body of ``POST /v1/uplinks/close``: the guest sends its answer and then closes every uplink, because open
    connections to the host cannot be saved. It dials again from 20 ms later on."""

    reason: str = Field(default="", max_length=256, description="for the journal of the sandbox")


class Told(Model):
    """Body of ``POST /v1/events``: what only the server knows of the sandbox' life, for the sandbox' journal."""

    type: Literal["sandbox_state", "policy_failed"]
    data: dict[str, JsonValue]


class Activity(Model):
    """``GET /v1/activity``: whether the sandbox does any work. Readers and viewers are none."""

    busy: bool
    reasons: list[str] = Field(
        description="what works, such as ``run:default``, ``process:proc-...``, ``terminal:term-...``"
    )
    idle_s: float = Field(ge=0, description="seconds since the last work; 0 while busy")


class EndAll(Model):
    """Body of ``POST /v1/end-all``: ends all contexts, processes and terminals; services stay declared."""

    start_services: bool = Field(default=False, description="afterwards, as at the start of a guest")


ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)*$", max_length=256)]


class Preload(Model):
    """Body of ``POST /v1/preload``: new Python contexts are forked from a process that has imported these."""

    modules: list[ModuleName] = Field(default=[], max_length=100)


class VariablesAsked(Model):
    """Body of ``POST /v1/variables/summary``."""

    context_id: ContextId = "default"


class VariableSummary(Model):
    """One variable, for comparing two kernels."""

    name: str
    type: str
    summary: str
    size_bytes: int | None = None
    digest: str | None = Field(
        default=None, description="equal values of builtin and array types have equal ones; null: no digest is possible"
    )


class VariablesSummary(Model):
    """Answer to ``POST /v1/variables/summary``; sorted by name."""

    variables: list[VariableSummary]
    truncated: bool
