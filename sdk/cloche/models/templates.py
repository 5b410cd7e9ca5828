"""Templates: a sandbox made ready once, saved, and started many times; pools keep some of them running."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from cloche.models._base import Env, Model, Name, Timestamp
from cloche.models.contexts import Code, ContextCreate
from cloche.models.processes import ServiceCreate
from cloche.models.sandboxes import DriverName, Resources

TemplateRef = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}(@[1-9][0-9]{0,8})?$")]
"""``name`` (its newest version that is ready) or ``name@version``."""


class TemplateContext(Model):
    """A context to be started, and code to be run in it (imports, data); null id: the sandbox' default context."""

    context: ContextCreate | None = None
    code: Code = ""


class TemplateCreate(Model):
    """Body of ``POST /v1/templates``: what goes in. The same inputs give the same version."""

    name: Name
    image: str = Field(default="python", min_length=1, max_length=128)
    driver: DriverName | None = None
    resources: Resources = Resources.model_construct()
    env: Env = {}
    sudo: bool = True
    setup: str = Field(default="", max_length=1_048_576, description="a bash script, run as the user in /workspace")
    setup_timeout_s: float = Field(default=600, ge=1, le=3600)
    contexts: list[TemplateContext] = Field(default=[], max_length=16)
    services: list[ServiceCreate] = Field(default=[], max_length=16)


class Template(Model):
    """One version."""

    name: str
    version: int
    owner: str
    state: Literal["building", "ready", "failed", "deleted"]
    spec: TemplateCreate
    spec_digest: str = Field(description="SHA-256 of the spec and of the image's digest")
    snapshot_id: str | None
    created_at: Timestamp
    build_s: float | None
    failure: str | None = None


class TemplateLog(Model):
    """What the build printed; the head and the tail of it when it is long."""

    text: str
    truncated: bool


class PoolCreate(Model):
    """Body of ``PUT /v1/pools/{name}``. ``template``: a template, or null for ``image`` with ``driver``, ``resources`` and
    ``sudo``, which a template says by itself. Environments are bound when a sandbox is handed out.

    ``min`` ready sandboxes are kept, up to ``max`` when creates come often; see docs/pools.md for the rule.
    """

    template: TemplateRef | None = None
    image: str | None = Field(default=None, min_length=1, max_length=128)
    driver: DriverName | None = None
    resources: Resources = Resources.model_construct()
    sudo: bool = True
    shared: bool = Field(
        default=False, description="serves the creates of every owner; of an image, and for admins only"
    )
    min: int = Field(default=1, ge=0, le=1000)
    max: int = Field(default=10, ge=0, le=1000)
    max_age_s: float = Field(default=3600, ge=10, le=604_800, description="older ready ones are replaced")


class PoolStats(Model):
    """Since the server's start. ``target``: how many ready ones are wanted now."""

    ready: int
    filling: int
    target: int
    claims: int
    misses: int = Field(description="creates that found none ready and went the cold way")
    broken: int = Field(description="ready ones that failed their health check and were removed")
    refill_s: float | None = Field(description="median of the last fills")


class Pool(Model):
    """One pool."""

    name: str
    owner: str
    template: str | None
    image: str | None
    driver: DriverName | None = Field(default=None, description="null: the template's, or the default")
    resources: Resources | None = Field(default=None, description="null: the template's")
    sudo: bool | None = Field(default=None, description="null: the template's")
    shared: bool = False
    min: int
    max: int
    max_age_s: float
    stats: PoolStats
    created_at: Timestamp


class IntentCreate(Model):
    """Body of ``POST /v1/intents``: ``count`` creates of ``template`` (or ``image``) are likely within ``within_s``."""

    template: TemplateRef | None = None
    image: str | None = Field(default=None, max_length=128)
    count: int = Field(default=1, ge=1, le=100)
    within_s: float = Field(default=60, ge=1, le=600)


class Intent(Model):
    """Accepted: ``pool`` is null when no pool serves it, and nothing is made ready."""

    pool: str | None
    expires_at: Timestamp
