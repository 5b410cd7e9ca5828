"""What server and guest say to each other; clients never see these."""

from __future__ import annotations

from pydantic import Field

from cloche.models._base import Env, Model, Timestamp

PROTOCOL_VERSION = 1


class Hello(Model):
    """First line of every uplink, guest to server, as one line of JSON."""

    protocol: int
    sandbox_id: str = Field(max_length=64)
    epoch: str = Field(max_length=64, description="runtime epoch the guest was started with")
    guest_epoch: str = Field(max_length=64, description="random, per life of the guest process; journals end with it")
    token: str = Field(max_length=256, description="from the guest's environment; good until the first accepted hello")
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


class HelloReply(Model):
    """One line of JSON, server to guest. Refused: ``identity`` is null, ``refused`` says why, the connection ends."""

    identity: Identity | None = None
    refused: str | None = None


class GuestHealth(Model):
    """``GET /v1/health`` of the guest."""

    status: str
    guest_epoch: str
    contexts: int
    memory_bytes: int = Field(description="resident memory of the guest daemon itself")
    open_files: int
